package descriptors

import (
	"errors"
	"fmt"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// newPolicy returns the policy of a limit in this place of the process. Its error joins a *limiter.ParamError for each
// parameter that is wrong, or does not go with the place.
func (p *Process) newPolicy(at *Placement, in limiter.Params) (*limiter.Policy, error) {
	policy, err := limiter.NewPolicy(at.completed(in))
	errs := []error{err}
	bad := func(param, format string, args ...any) {
		errs = append(errs, &limiter.ParamError{Param: param, Msg: fmt.Sprintf(format, args...)})
	}
	if at.RedisCell {
		checkRedisCell(&in, bad)
	}
	if at.LeaseFor != 0 {
		at.checkLeased(&in, bad)
	}
	if p.NoScripts != nil && p.NoScripts(at.Store) {
		checkScripts(at, &in, bad)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return policy, nil
}

// checkScripts checks that a store can decide the limit that runs no scripts.
func checkScripts(at *Placement, in *limiter.Params, bad func(param, format string, args ...any)) {
	if in.Algorithm != limiter.FixedWindow {
		bad("algorithm", "%s needs scripts, and this limit's store runs none (--no-store-scripts); write fixed_window, or "+
			"store: with the name of a store that runs scripts", in.Algorithm)
		return
	}
	if in.Align == limiter.AlignFirstHit {
		bad("align", "windows that begin with the first hit need scripts, and this limit's store runs none "+
			"(--no-store-scripts); write epoch or calendar")
	}
	if in.ChargeDenied != limiter.ChargeDefault && in.ChargeDenied != limiter.ChargeFull {
		bad("charge_denied", "a store without scripts (--no-store-scripts) charges a denied request in full; write full, "+
			"or leave it out")
	}
	if at.LeaseFor != 0 {
		bad("lease_for", "permits of a store without scripts (--no-store-scripts) cannot be leased")
	}
}

// RunsScripts reports whether the limit's store runs scripts, by which hits can be charged before they are needed.
func (l *Limit) RunsScripts() bool {
	none := l.Rule.process.NoScripts
	return none == nil || !none(l.Placement().Store)
}
