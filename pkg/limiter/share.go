package limiter

import "time"

// Share returns the policy of one of n parts of the limit, each with a counter of its own. All n together let pass what
// the limit does, or n hits where that is less, since a share lets at least one pass.
//
// A limit that is a rate (Funnel, LeakyQueue and their like) is n times slower, over a burst that is divided; one that
// counts in windows gets a part of the number, and so does a rate that cannot be counted exactly n times slower. A part
// is rounded down. What can be counted in neither way becomes a FixedWindow. The error is of Params that are no policy
// by themselves.
func (in Params) Share(n int64) (*Policy, error) {
	if _, err := NewPolicy(in); err != nil || n <= 1 {
		return NewPolicy(in)
	}
	fixed := Params{Algorithm: FixedWindow, Limit: part(in.Limit, n), Window: in.Window, ChargeDenied: in.ChargeDenied}
	if algorithms[in.Algorithm].is&isRate != 0 && in.Limit > 0 && in.Refill == RefillGreedy {
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

// slower is the limit at the n-th part of its rate. Its window may be longer than a policy's can be.
func (in Params) slower(n int64) Params {
	in.Window *= time.Duration(min(n, 1+int64(MaxWindow/in.Window)))
	if in.Algorithm.Has("burst") {
		in.Burst = part(orDefault(in.Burst, in.Limit), n)
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
