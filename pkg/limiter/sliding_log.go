package limiter

import "sort"

// slidingLog is one step of the log of admitted hits: a hit at time t counts until t+W. The list holds pairs
// (time, total), oldest first, where total is the sum of all costs up to and with that entry; A is the total
// before the first pair. So what is alive in the window is a difference of two totals, found by bisection.
//
// Memory is O(N): only entries of the window are kept, each costs at least 1, and where denied hits are
// logged too (ChargeFull) entries behind the newest N hits are dropped, since they can decide nothing.
func (p *Policy) slidingLog(s *State, now, n int64, c charge, d *Decision) (next State, took bool) {
	log, base := s.List, s.A
	first := sort.Search(len(log)/2, func(i int) bool { return log[2*i] > now-p.window })
	if first > 0 {
		base, log = log[2*first-1], log[2*first:]
	}
	total := base
	if len(log) > 0 {
		total = log[len(log)-1]
	}
	left := max(0, p.limit-(total-base))

	ok, take := p.fits(left, n, c)
	*d = Decision{Allowed: ok}
	if !ok {
		d.RetryAfter = Never
		if need := max(n, 1); need <= p.limit {
			// The entry whose end leaves at most limit-need alive.
			i := sort.Search(len(log)/2, func(i int) bool { return total-log[2*i+1] <= p.limit-need })
			d.RetryAfter = micros(log[2*i] + p.window - now)
		}
	}
	switch {
	case take < 0:
		log = giveBack(log, base, total+take)
	case take > 0:
		at := now
		if len(log) > 0 {
			at = max(at, log[len(log)-2])
		}
		log = append(log, at, total+take)
		base, log = p.prune(base, log)
	}
	if len(log) > 0 {
		d.Remaining = max(0, p.limit-(log[len(log)-1]-base))
		d.ResetAfter = micros(log[len(log)-2] + p.window - now)
	} else {
		d.Remaining = p.limit
	}
	if take == 0 || (take < 0 && total == base) {
		return State{}, false
	}
	if len(log) == 0 {
		return State{}, true
	}
	return State{A: base, List: log}, true
}

// giveBack takes the newest hits out of the log until its total is at most total.
func giveBack(log []int64, base, total int64) []int64 {
	if total <= base {
		return nil
	}
	last := sort.Search(len(log)/2, func(i int) bool { return log[2*i+1] >= total })
	kept := append([]int64(nil), log[:2*last+2]...)
	kept[2*last+1] = total
	return kept
}

// prune drops the oldest entries that the newest limit hits already outweigh.
func (p *Policy) prune(base int64, log []int64) (int64, []int64) {
	total := log[len(log)-1]
	for len(log) > 2 && total-log[1] >= p.limit {
		base, log = log[1], log[2:]
	}
	return base, log
}
