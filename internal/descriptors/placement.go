package descriptors

import (
	"errors"
	"fmt"
	"time"

	bounds "github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Bounds of Placement.LeaseFor.
const (
	MinLeaseFor     = 5 * time.Millisecond // some round trips to Redis
	MaxLeaseFor     = time.Second
	DefaultLease    = time.Minute           // of concurrency, for rules that name none: Envoy's own route timeout is 15 s
	DefaultLeaseFor = 50 * time.Millisecond // for rules that name none
)

// Placement says where a limit is counted and who decides, of which its Policy knows nothing. A hit carries it as its
// Route, and stores read it by its methods. The zero Placement is the process's first store, which decides each request
// by Weir's own steps.
type Placement struct {
	// Store is the name of the store that has the counters. Empty is the only one, or the first of several.
	Store string
	// RedisCell has the redis-cell module decide in Redis, by CL.THROTTLE: a GCRA on a clock of nanoseconds. It goes with
	// Funnel and with a TokenBucket that starts full and is refilled continuously, windows of whole seconds, at most a
	// hit a microsecond, and ChargeNone. In memory it makes no difference.
	RedisCell bool
	// LeaseFor is for how long a process may acquire permits in advance and spend them without a call to the store:
	// `consistency: leased`. 0 is strict. It goes with algorithms that are step.Prepayable, a bucket only as it is by
	// default, and with ChargeNone, which is then also FixedWindow's default.
	LeaseFor time.Duration
}

// StoreName returns Store.
func (p *Placement) StoreName() string { return p.Store }

// UsesRedisCell returns RedisCell.
func (p *Placement) UsesRedisCell() bool { return p.RedisCell }

// LeaseTime returns LeaseFor.
func (p *Placement) LeaseTime() time.Duration { return p.LeaseFor }

// route returns the place for a Limit to keep: nil for the zero one.
func (p *Placement) route() *Placement {
	if *p == (Placement{}) {
		return nil
	}
	own := *p
	return &own
}

// completed returns the parameters with the defaults of a limit in this place.
func (p *Placement) completed(in limiter.Params) limiter.Params {
	if p.LeaseFor != 0 && in.ChargeDenied == limiter.ChargeDefault {
		in.ChargeDenied = limiter.ChargeNone
	}
	return in
}

// newPolicy returns the policy of a limit in this place. Its error joins a *limiter.ParamError for each
// parameter that is wrong, or does not go with the place.
func (p *Placement) newPolicy(in limiter.Params) (*limiter.Policy, error) {
	policy, err := limiter.NewPolicy(p.completed(in))
	errs := []error{err}
	bad := func(param, format string, args ...any) {
		errs = append(errs, &limiter.ParamError{Param: param, Msg: fmt.Sprintf(format, args...)})
	}
	if p.RedisCell {
		checkRedisCell(&in, bad)
	}
	if p.LeaseFor != 0 {
		p.checkLeased(&in, bad)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return policy, nil
}

// hasRedisCell reports whether the redis-cell module can decide limits of the algorithm: it knows only GCRA.
func hasRedisCell(a limiter.Algorithm) bool { return a == limiter.Funnel || a == limiter.TokenBucket }

// checkRedisCell checks that CL.THROTTLE can decide the limit.
func checkRedisCell(in *limiter.Params, bad func(param, format string, args ...any)) {
	if !hasRedisCell(in.Algorithm) {
		bad("engine", "the redis_cell engine decides funnel and token_bucket; use one of these, or no engine")
	}
	if in.Window%time.Second != 0 {
		bad("window", "the redis_cell engine counts per whole seconds, got %s; use a multiple of 1s, or no engine", in.Window)
	}
	if in.Limit > in.Window.Microseconds() {
		bad("limit", "the redis_cell engine counts at most one hit a microsecond, got %d per %s; use less, or no engine",
			in.Limit, in.Window)
	}
	if !chargesNothing(in) {
		bad("charge_denied", "the redis_cell engine charges a denied request nothing; use none, or no engine")
	}
	if in.StartsEmpty {
		bad("initial", "the redis_cell engine starts full; use full, or no engine")
	}
	if in.RefillsAtOnce {
		bad("refill", "the redis_cell engine refills continuously; use greedy, or no engine")
	}
}

// checkLeased checks that permits can be acquired before they are needed, and released without a trace.
func (p *Placement) checkLeased(in *limiter.Params, bad func(param, format string, args ...any)) {
	if !in.Algorithm.Kind().Is(bounds.Prepayable) {
		bad("lease_for", "permits of %s cannot be leased: its answers depend on the moment at which each request comes",
			in.Algorithm)
	}
	switch {
	case p.RedisCell:
		bad("lease_for", "permits of the redis_cell engine cannot be leased")
	case in.StartsEmpty:
		bad("lease_for", "permits of a bucket that starts empty cannot be leased")
	case in.RefillsAtOnce:
		bad("lease_for", "permits of a bucket that is refilled in intervals cannot be leased")
	}
	if !chargesNothing(in) {
		bad("charge_denied", "a limit whose permits are leased charges a denied request nothing; use none")
	}
	if p.LeaseFor < MinLeaseFor || p.LeaseFor > MaxLeaseFor {
		bad("lease_for", "must be between %s and %s, got %s", MinLeaseFor, MaxLeaseFor, p.LeaseFor)
	} else if in.Window >= bounds.MinWindow && p.LeaseFor > in.Window {
		bad("lease_for", "must be at most the window, %s, got %s", in.Window, p.LeaseFor)
	}
}

func chargesNothing(in *limiter.Params) bool {
	return in.ChargeDenied == limiter.ChargeDefault || in.ChargeDenied == limiter.ChargeNone
}

// Placement returns where the limit is counted.
func (l *Limit) Placement() Placement {
	if l.placement == nil {
		return Placement{}
	}
	return *l.placement
}

// Route returns what the limit's hits carry: its *Placement, or nil if that is the zero one.
func (l *Limit) Route() any {
	if l.placement == nil {
		return nil
	}
	return l.placement
}
