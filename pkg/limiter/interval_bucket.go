package limiter

import "github.com/weir-ratelimit/weir/internal/step"

// intervalBucket is a TokenBucket with RefillsAtOnce: Limit tokens are added at once every Window, counted from the
// first hit on a full bucket. In a State, a Window began at A, in microseconds since the Unix epoch, when B tokens were
// missing. The zero State is a full bucket, or, with StartsEmpty, a bucket that has not started.
//
// A state that the policy cannot produce is cut: an A after now (the clock was set back) becomes now, and a B above
// maxDebt (the rule was edited) becomes maxDebt. Only a cut of A must be written.
type intervalBucket struct {
	terms

	burst       int64 // maximum number of tokens
	maxDebt     int64 // maximum number of missing tokens
	startsEmpty bool
	linger      int64 // how long a full bucket that starts empty is remembered, microseconds
}

// newIntervalBucket bounds the debt to largestDebt, in whole windows, and to the tokens that are added within
// step.Horizon.
func newIntervalBucket(in *Params) (step.Algorithm, error) {
	b := &intervalBucket{
		terms: in.terms(), burst: in.Burst, maxDebt: step.Exact / 2, startsEmpty: in.StartsEmpty,
	}
	if batches := step.Horizon / b.window; batches < b.maxDebt/b.limit {
		b.maxDebt = batches * b.limit
	}
	if b.burst > b.maxDebt {
		return nil, paramError("burst", "%d tokens at %d per %s take more than 142 years; choose a smaller burst",
			b.burst, b.limit, in.Window)
	}
	if b.denied != ChargeFull {
		b.maxDebt = b.burst
	} else if batches := ceilDiv(largestDebt.Microseconds(), b.window); batches < (b.maxDebt-b.burst)/b.limit {
		b.maxDebt = b.burst + batches*b.limit
	}
	if b.startsEmpty {
		b.linger = ceilDiv(b.burst, b.limit) * b.window
	}
	return b, nil
}

func (b *intervalBucket) Traits() step.Traits {
	return step.Traits{
		Script: "interval_bucket", Capacity: b.burst, Largest: b.burst, Extra: b.burst, Linger: micros(b.linger),
		Cacheable: b.denied == ChargeNone && !b.startsEmpty,
	}
}

func (b *intervalBucket) Args() []int64 {
	return []int64{b.limit, b.window, b.burst, b.maxDebt, fromBool(b.startsEmpty), b.linger}
}

func (b *intervalBucket) Step(s step.State, now, n int64, c step.Charge) (next step.State, o step.Outcome) {
	start, missing, first := b.refilled(&s, now)
	isBack, isCut := s.A > now, s.A > now || s.B > b.maxDebt
	left := max(0, b.burst-missing)

	ok, take := b.fits(left, n, c)
	before := missing
	missing = min(max(0, missing+take), max(missing, b.maxDebt))
	after := func(tokens int64) int64 { return start + ceilDiv(tokens, b.limit)*b.window - now }
	if !ok {
		o.Delay = Never
		if need := max(n, 1); need <= b.burst {
			o.Delay = micros(after(missing - (b.burst - need)))
		}
	}
	o.Remaining = max(0, b.burst-missing)
	if missing > 0 {
		o.Reset = micros(after(missing))
	}
	changed := missing != before || first && n != 0 || isBack
	o.Is = step.VerdictOf(ok, changed, isCut && changed)
	if missing == 0 {
		if !b.startsEmpty {
			return step.State{}, o
		}
		start = now // the bucket is full since now, not since the last refill
	}
	return step.State{A: start, B: missing}, o
}

// refilled returns when the current Window began, how many tokens are missing, and whether an empty bucket starts at
// now.
func (b *intervalBucket) refilled(s *step.State, now int64) (start, missing int64, first bool) {
	start, missing = min(s.A, now), min(s.B, b.maxDebt)
	full := start + ceilDiv(missing, b.limit)*b.window
	switch {
	case b.startsEmpty && (s.A == 0 || now >= full+b.linger):
		return now, b.burst, true
	case s.A == 0, now >= full:
		return now, 0, false
	}
	batches := (now - start) / b.window
	return start + batches*b.window, missing - batches*b.limit, false
}
