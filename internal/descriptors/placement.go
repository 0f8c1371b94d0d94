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
	MinLeaseFor     = 5 * time.Millisecond  // a few round trips to Redis
	MaxLeaseFor     = time.Minute           // for the distance to a store in another region
	longLease       = time.Second           // a longer lease is at most a tenth of the window
	DefaultLease    = time.Minute           // default `lease` of concurrency; Envoy's default route timeout is 15 s
	DefaultLeaseFor = 50 * time.Millisecond // default `lease_for`
)

// Placement says which store counts a limit, and who decides. A hit carries it as its Route, whose methods stores call.
// The zero Placement is the first store of the process, which decides each request with Weir's own algorithms.
type Placement struct {
	// Store is the name of the store; empty for the first or only one.
	Store string
	// RedisCell lets the redis-cell module decide in Redis with CL.THROTTLE, which is GCRA on a clock of nanoseconds. It
	// requires Funnel, or a TokenBucket that starts full and refills continuously; windows of whole seconds; at most one
	// hit per microsecond; and ChargeNone. It has no effect on counters in memory.
	RedisCell bool
	// LeaseFor is how long a process may spend permits that it acquired in advance, without a call to the store:
	// `consistency: leased`. 0 means strict. Above 0 it requires an algorithm that is step.Prepayable, default parameters
	// for a bucket, and ChargeNone, which it makes FixedWindow's default.
	LeaseFor time.Duration
	// Regions divides the limit: each region counts its percentage of Process.Regions (`scope: regions`).
	Regions bool
}

// StoreName returns Store.
func (p *Placement) StoreName() string { return p.Store }

// UsesRedisCell returns RedisCell.
func (p *Placement) UsesRedisCell() bool { return p.RedisCell }

// LeaseTime returns LeaseFor.
func (p *Placement) LeaseTime() time.Duration { return p.LeaseFor }

// route returns the Placement for a Limit to hold: nil for the zero Placement.
func (p *Placement) route() *Placement {
	if *p == (Placement{}) {
		return nil
	}
	own := *p
	return &own
}

// completed returns the parameters with the defaults that depend on the Placement.
func (p *Placement) completed(in limiter.Params) limiter.Params {
	if (p.LeaseFor != 0 || in.Reserve > 0) && in.ChargeDenied == limiter.ChargeDefault {
		in.ChargeDenied = limiter.ChargeNone
	}
	return in
}

// newPolicy returns the policy of a limit with this Placement. The error joins a *limiter.ParamError for each parameter
// that is invalid or does not fit the Placement.
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

// hasRedisCell reports whether the redis-cell module, which knows only GCRA, supports the algorithm.
func hasRedisCell(a limiter.Algorithm) bool { return a == limiter.Funnel || a == limiter.TokenBucket }

// checkRedisCell reports parameters that CL.THROTTLE does not support.
func checkRedisCell(in *limiter.Params, bad func(param, format string, args ...any)) {
	if !hasRedisCell(in.Algorithm) {
		bad("engine", "the redis_cell engine supports only funnel and token_bucket; use one of these, or no engine")
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

// checkLeased reports parameters with which permits cannot be leased.
func (p *Placement) checkLeased(in *limiter.Params, bad func(param, format string, args ...any)) {
	if of, _ := p.notPrepayable(in); of != "" {
		bad("lease_for", "permits of %s cannot be leased", of)
	}
	if !chargesNothing(in) {
		bad("charge_denied", "a limit whose permits are leased charges a denied request nothing; use none")
	}
	switch {
	case p.LeaseFor < MinLeaseFor || p.LeaseFor > MaxLeaseFor:
		bad("lease_for", "must be between %s and %s, got %s", MinLeaseFor, MaxLeaseFor, p.LeaseFor)
	case in.Window < bounds.MinWindow: // reported
	case p.LeaseFor > in.Window:
		bad("lease_for", "must be at most the window, %s, got %s", in.Window, p.LeaseFor)
	case p.LeaseFor > longLease && p.LeaseFor > in.Window/10:
		bad("lease_for", "above %s must be at most a tenth of the window, %s, got %s", longLease, in.Window/10, p.LeaseFor)
	}
}

// notPrepayable returns why hits cannot be charged in advance and taken back without a trace, and the field to write
// instead; "" if they can.
func (p *Placement) notPrepayable(in *limiter.Params) (of, instead string) {
	switch {
	case !in.Algorithm.Kind().Is(bounds.Prepayable):
		return in.Algorithm.String() + ", whose decisions depend on the moment of each request,", "algorithm: funnel"
	case p.RedisCell:
		return "the redis_cell engine", "engine: weir"
	case in.StartsEmpty:
		return "a bucket that starts empty", "initial: full"
	case in.RefillsAtOnce:
		return "a bucket that is refilled in intervals", "refill: greedy"
	}
	return "", ""
}

func chargesNothing(in *limiter.Params) bool {
	return in.ChargeDenied == limiter.ChargeDefault || in.ChargeDenied == limiter.ChargeNone
}

// Placement returns the limit's Placement.
func (l *Limit) Placement() Placement {
	if l.placement == nil {
		return Placement{}
	}
	return *l.placement
}

// Route returns the Route of the limit's hits: its *Placement, or nil for the zero Placement.
func (l *Limit) Route() any {
	if l.placement == nil {
		return nil
	}
	return l.placement
}
