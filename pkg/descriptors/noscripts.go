package descriptors

import (
	"errors"
	"fmt"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// newPolicy returns the policy of a limit in this place of the process. Its error joins a *limiter.ParamError for each
// parameter that is wrong, or does not go with the place.
func (p *Process) newPolicy(at *Placement, in limiter.Params) (*limiter.Policy, error) {
	policy, err := at.newPolicy(in)
	if err := errors.Join(err, p.checkScripts(at, &in)); err != nil {
		return nil, err
	}
	return policy, nil
}

// checkScripts returns what of the parameters a store cannot decide that runs no scripts.
func (p *Process) checkScripts(at *Placement, in *limiter.Params) error {
	if p.NoScripts == nil || !p.NoScripts(at.Store) {
		return nil
	}
	var errs []error
	bad := func(param, format string, args ...any) {
		errs = append(errs, &limiter.ParamError{Param: param, Msg: fmt.Sprintf(format, args...)})
	}
	if in.Algorithm != limiter.FixedWindow {
		bad("algorithm", "%s needs scripts, and this limit's store runs none (--no-store-scripts); write fixed_window, or "+
			"store: with the name of a store that runs scripts", in.Algorithm)
		return errors.Join(errs...)
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
	return errors.Join(errs...)
}

// RunsScripts reports whether the limit's store runs scripts, by which hits can be charged before they are needed.
func (l *Limit) RunsScripts() bool {
	none := l.Rule.process.NoScripts
	return none == nil || !none(l.Placement().Store)
}
