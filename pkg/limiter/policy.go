package limiter

import (
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
)

// Policy is a checked limit. Its numbers are scaled so that every number in a step stays below 2^53, and Lua decides
// exactly as Go does. It is immutable and safe for concurrent use.
type Policy struct {
	core   step.Core
	params Params // with all defaults filled in
}

// NewPolicy checks the parameters and returns their Policy. The error wraps a *ParamError for each wrong parameter.
func NewPolicy(in Params) (*Policy, error) {
	if !in.Algorithm.known() {
		return nil, paramError("algorithm", "must be one of %s", strings.Join(step.Names(Algorithms()), ", "))
	}
	if err := in.validate(); err != nil {
		return nil, err
	}
	a := &algorithms[in.Algorithm]
	if in.Limit == 0 {
		in.Reserve = 0
	}
	if in.ChargeDenied == ChargeDefault {
		in.ChargeDenied = ChargeNone
		if a.is.Is(step.InWindows) && in.Reserve == 0 {
			in.ChargeDenied = ChargeFull
		}
	}
	p := &Policy{core: step.Core{Algorithm: denyAll{}, Kind: a.is, Counter: a.counter}}
	if in.Limit > 0 || a.is.Is(step.InWindows) {
		var err error
		if p.core.Algorithm, err = a.make(&in); err != nil {
			return nil, err
		}
	}
	p.params, p.core.Traits = in, p.core.Algorithm.Traits()
	if in.ChargeDenied != ChargeFull {
		p.core.Reserve = in.Reserve
	}
	if in.Reserve != 0 {
		if err := in.checkReserve(p.core.Capacity); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// Params returns the limit's parameters, with all defaults filled in.
func (p *Policy) Params() Params { return p.params }

// Algorithm returns the limit's algorithm.
func (p *Policy) Algorithm() Algorithm { return p.params.Algorithm }

// Limit returns the number of hits that may pass per Window.
func (p *Policy) Limit() int64 { return p.params.Limit }

// Window returns the time over which Limit is counted.
func (p *Policy) Window() time.Duration { return p.params.Window }

// Capacity returns how many hits can pass at once at most: the burst if the algorithm has one, else the limit.
func (p *Policy) Capacity() int64 { return p.core.Capacity }

// MaxWait returns the longest Decision.Wait of an admitted hit, 0 if the algorithm delays no requests.
func (p *Policy) MaxWait() time.Duration { return p.core.MaxWait }

// Core returns the internal form of the limit. It is for the packages of this module.
func (p *Policy) Core() *step.Core { return &p.core }
