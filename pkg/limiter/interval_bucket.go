package limiter

// intervalBucket is a TokenBucket with RefillInterval: it is refilled in whole batches, Limit tokens every Window,
// counted from the first hit on a full bucket. In a State, B tokens were missing at A, in microseconds since the epoch,
// when a Window began. The zero State is a full bucket, or one that is about to start (InitialEmpty).
//
// While the clock is behind A (it stepped back), no batch comes.
type intervalBucket struct {
	terms

	burst       int64 // the most tokens
	maxDebt     int64 // the most tokens that can be missing
	startsEmpty bool
	linger      int64 // how long a bucket that starts empty is remembered after it became full, microseconds
}

// newIntervalBucket bounds the bucket's debt to what comes back before the horizon.
func newIntervalBucket(in *Params) (algorithm, error) {
	b := &intervalBucket{
		terms: in.terms(), burst: in.Burst, maxDebt: maxExact / 2, startsEmpty: in.Initial == InitialEmpty,
	}
	if batches := horizon / b.window; batches < b.maxDebt/b.limit {
		b.maxDebt = batches * b.limit
	}
	if b.burst > b.maxDebt {
		return nil, paramError("burst", "%d tokens at %d per %s take more than 142 years; choose a smaller burst",
			b.burst, b.limit, in.Window)
	}
	if b.startsEmpty {
		b.linger = ceilDiv(b.burst, b.limit) * b.window
	}
	return b, nil
}

func (b *intervalBucket) traits() traits {
	return traits{
		script: "interval_bucket", capacity: b.burst, largest: b.burst, extra: b.burst, linger: micros(b.linger),
		cacheable: b.denied == ChargeNone && !b.startsEmpty,
	}
}

func (b *intervalBucket) args() []int64 {
	return []int64{b.limit, b.window, b.burst, b.maxDebt, fromBool(b.startsEmpty), b.linger}
}

func (b *intervalBucket) step(s State, now, n int64, c Charge) (next State, o outcome) {
	start, missing, first := b.refilled(&s, now)
	left := max(0, b.burst-missing)

	ok, take := b.fits(left, n, c)
	before := missing
	missing = min(max(0, missing+take), max(missing, b.maxDebt))
	after := func(tokens int64) int64 { return start + ceilDiv(tokens, b.limit)*b.window - now }
	if !ok {
		o.delay = Never
		if need := max(n, 1); need <= b.burst {
			o.delay = micros(after(missing - (b.burst - need)))
		}
	}
	o.remaining = max(0, b.burst-missing)
	if missing > 0 {
		o.reset = micros(after(missing))
	}
	o.is = verdictOf(ok, missing != before || first && n != 0)
	if missing == 0 {
		if !b.startsEmpty {
			return State{}, o
		}
		start = now // full since now, not since its batch
	}
	return State{A: start, B: missing}, o
}

// refilled returns how many tokens are missing at now, since when the current batch counts, and whether the bucket is
// about to start.
func (b *intervalBucket) refilled(s *State, now int64) (start, missing int64, first bool) {
	if s.A == 0 || s.A-now > grace {
		return b.begin(now)
	}
	missing = min(s.B, b.maxDebt)
	full := s.A + ceilDiv(missing, b.limit)*b.window
	switch {
	case b.startsEmpty && now >= full+b.linger:
		return b.begin(now)
	case now >= full:
		return now, 0, false
	case now < s.A:
		return s.A, missing, false
	}
	batches := (now - s.A) / b.window
	return s.A + batches*b.window, missing - batches*b.limit, false
}

// begin is a bucket that was never hit.
func (b *intervalBucket) begin(now int64) (start, missing int64, first bool) {
	if b.startsEmpty {
		return now, b.burst, true
	}
	return now, 0, false
}
