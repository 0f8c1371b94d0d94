package limiter

// intervalBucket is one step of a token bucket that is refilled in whole batches: Limit tokens every Window,
// counted from the first hit on a full bucket. B tokens were missing at A, in microseconds since the epoch,
// when a Window began. The zero State is a full bucket, or one that is about to start (InitialEmpty).
//
// While the clock is behind A (it stepped back), no batch comes.
func (p *Policy) intervalBucket(s *State, now, n int64, c charge, d *Decision) (next State, took bool) {
	start, missing, first := p.refilled(s, now)
	left := max(0, p.burst-missing)

	ok, take := p.fits(left, n, c)
	*d = Decision{Allowed: ok}
	before := missing
	missing = min(max(0, missing+take), max(missing, p.maxLevel))
	after := func(tokens int64) int64 { return start + ceilDiv(tokens, p.limit)*p.window - now }
	if !ok {
		d.RetryAfter = Never
		if need := max(n, 1); need <= p.burst {
			d.RetryAfter = micros(after(missing - (p.burst - need)))
		}
	}
	d.Remaining = max(0, p.burst-missing)
	if missing > 0 {
		d.ResetAfter = micros(after(missing))
	}
	if missing == before && (!first || n == 0) {
		return State{}, false
	}
	if missing == 0 {
		if p.initial == InitialFull {
			return State{}, true
		}
		start = now // full since now, not since its batch
	}
	return State{A: start, B: missing}, true
}

// refilled is how many tokens are missing at now, since when the current batch counts, and whether the bucket
// is about to start.
func (p *Policy) refilled(s *State, now int64) (start, missing int64, first bool) {
	if s.A == 0 || s.A-now > grace {
		return p.begin(now)
	}
	missing = min(s.B, p.maxLevel)
	full := s.A + ceilDiv(missing, p.limit)*p.window
	switch {
	case p.initial == InitialEmpty && now >= full+p.linger.Microseconds():
		return p.begin(now)
	case now >= full:
		return now, 0, false
	case now < s.A:
		return s.A, missing, false
	}
	batches := (now - s.A) / p.window
	return s.A + batches*p.window, missing - batches*p.limit, false
}

// begin is a bucket that was never hit.
func (p *Policy) begin(now int64) (start, missing int64, first bool) {
	if p.initial == InitialEmpty {
		return now, p.burst, true
	}
	return now, 0, false
}
