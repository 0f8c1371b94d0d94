package limiter

import "time"

// Share is the policy of one of n processes that count by themselves what they should count together: a limit's part
// for each while their common store is away. All n together let pass what the limit does, or n hits where that is less,
// since a share lets at least one pass.
//
// What flows at a rate (Funnel, LeakyQueue and their like) flows n times slower, over a burst that is divided; what
// counts in windows gets a part of the number, and so does a rate that cannot be counted exactly n times slower. A part
// is rounded down. What cannot be counted in either way becomes a FixedWindow. The error is of Params that are no policy
// by themselves.
func (in Params) Share(n int64) (*Policy, error) {
	in.Engine = EngineWeir
	if _, err := NewPolicy(in); err != nil || n <= 1 {
		return NewPolicy(in)
	}
	fixed := Params{Algorithm: FixedWindow, Limit: part(in.Limit, n), Window: in.Window, ChargeDenied: in.ChargeDenied}
	if in.flows() {
		if p, err := NewPolicy(in.slower(n)); err == nil {
			return p, nil
		}
	}
	in.Limit, in.Burst, in.SegmentCap = part(in.Limit, n), part(in.Burst, n), part(in.SegmentCap, n)
	if p, err := NewPolicy(in); err == nil {
		return p, nil
	}
	return NewPolicy(fixed)
}

// flows says whether the limit is a rate, which can be slower.
func (in *Params) flows() bool {
	switch in.Algorithm {
	case Funnel, TokenBucket, LeakyQueue:
		return in.Limit > 0 && in.Refill == RefillGreedy
	case SmoothBursty, SmoothWarmingUp:
		return in.Limit > 0
	default:
		return false
	}
}

// slower is the limit at the n-th part of its rate. Its window may be longer than a policy's can be.
func (in Params) slower(n int64) Params {
	in.Window *= time.Duration(min(n, 1+int64(MaxWindow/in.Window)))
	switch in.Algorithm {
	case Funnel, TokenBucket, LeakyQueue:
		in.Burst = part(orDefault(in.Burst, in.Limit), n)
	default:
	}
	return in
}

// part is the n-th part of v, at least 1, or 0 of 0.
func part(v, n int64) int64 {
	if v == 0 {
		return 0
	}
	return max(1, v/n)
}
