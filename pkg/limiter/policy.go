package limiter

import (
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
)

// Policy is a checked limit, scaled so that every number that a step computes stays below 2^53 and Lua agrees with Go
// exactly. It is immutable and safe for concurrent use.
type Policy struct {
	core   step.Core
	params Params // with all defaults of the algorithm
}

// NewPolicy checks the parameters and scales them. Its error joins a *ParamError for each wrong parameter.
func NewPolicy(in Params) (*Policy, error) {
	if !in.Algorithm.known() {
		return nil, paramError("algorithm", "must be one of %s", strings.Join(step.Names(Algorithms()), ", "))
	}
	if err := in.validate(); err != nil {
		return nil, err
	}
	if in.ChargeDenied == ChargeDefault {
		in.ChargeDenied = ChargeNone
		if in.Algorithm.Kind().Is(step.InWindows) {
			in.ChargeDenied = ChargeFull
		}
	}
	a := &algorithms[in.Algorithm]
	p := &Policy{core: step.Core{Algorithm: denyAll{}, Kind: a.is, Counter: a.counter}}
	if in.Limit > 0 || a.is.Is(step.InWindows) {
		var err error
		if p.core.Algorithm, err = a.make(&in); err != nil {
			return nil, err
		}
	}
	p.params, p.core.Traits = in, p.core.Algorithm.Traits()
	return p, nil
}

// Params returns the limit's parameters, with all defaults of its algorithm.
func (p *Policy) Params() Params { return p.params }

// Algorithm is how the limit counts.
func (p *Policy) Algorithm() Algorithm { return p.params.Algorithm }

// Limit is how many hits may pass per Window.
func (p *Policy) Limit() int64 { return p.params.Limit }

// Window is the time that Limit is counted over.
func (p *Policy) Window() time.Duration { return p.params.Window }

// Capacity is the most hits that can pass at once: the burst where the algorithm has one, else the limit.
func (p *Policy) Capacity() int64 { return p.core.Capacity }

// MaxWait is the longest Decision.Wait of an admitted hit, 0 for algorithms that delay nothing.
func (p *Policy) MaxWait() time.Duration { return p.core.MaxWait }

// Core returns how the limit counts. It is for the packages of this module.
func (p *Policy) Core() *step.Core { return &p.core }
