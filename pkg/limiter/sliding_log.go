package limiter

import "sort"

// slidingLog is one step of the log of admitted hits: a hit at time t counts until t+W. The list holds pairs
// (time, total), oldest first, where total is the sum of all costs up to and with that entry; A is the total
// before the first pair. So what is alive in the window is a difference of two totals, found by bisection.
//
// Concurrency is a log of leases: a hit counts until it is given back, or until its lease W ends. Which lease a
// hit gives back is not known, so it is the oldest: those that stay end later than they have to, never earlier.
//
// Memory is O(N): only entries of the window are kept, each costs at least 1, and where denied hits are
// logged too (ChargeFull) entries behind the newest N hits are joined to the next one, since until that leaves
// the window they can decide nothing. Their hits stay counted, for a refund may uncover them: they then leave
// with the entry that they were joined to, which is later than their own end and never earlier.
//
// Totals stay below 2^53: a debt stops growing at the horizon, and a log whose totals have become too large is
// counted anew.
func (p *Policy) slidingLog(s *State, now, n int64, c charge, d *Decision) (next State, took bool) {
	log, base := s.List, s.A
	if len(log) > 0 && log[len(log)-2]-now > grace {
		log, base = nil, 0
	}
	first := sort.Search(len(log)/2, func(i int) bool { return log[2*i] > now-p.window })
	if first > 0 {
		base, log = log[2*first-1], log[2*first:]
	}
	total := base
	if len(log) > 0 {
		total = log[len(log)-1]
	}
	before := total - base
	left := max(0, p.limit-before)

	if c == spend && p.algorithm == Concurrency {
		c = look // nobody gives back what a hit that did not fit would hold
	}
	ok, take := p.fits(left, n, c)
	*d = Decision{Allowed: ok}
	take = min(take, horizon-(total-base))
	switch {
	case take < 0 && p.algorithm == Concurrency:
		base, log = giveBackOldest(log, min(total, base-take))
	case take < 0:
		log = giveBack(log, base, total+take)
	case take > 0:
		if total+take > maxExact {
			log, total, base = rebase(log, base), total-base, 0
		}
		at := now
		if len(log) > 0 {
			at = max(at, log[len(log)-2])
		}
		log = append(log, at, total+take)
		log = p.prune(log)
	}
	if !ok {
		d.RetryAfter = Never
		if need := max(n, 1); need <= p.limit {
			d.RetryAfter = micros(p.leaves(log, need) - now)
		}
	}
	if len(log) > 0 {
		d.Remaining = max(0, p.limit-(log[len(log)-1]-base))
		d.ResetAfter = micros(log[len(log)-2] + p.window - now)
	} else {
		d.Remaining = p.limit
	}
	if take == 0 || (take < 0 && before == 0) {
		return State{}, false
	}
	if len(log) == 0 {
		return State{}, true
	}
	return State{A: base, List: log}, true
}

// leaves is when enough of the log has left the window for a cost of need, which does not fit now.
func (p *Policy) leaves(log []int64, need int64) int64 {
	total := log[len(log)-1]
	i := sort.Search(len(log)/2, func(i int) bool { return total-log[2*i+1] <= p.limit-need })
	return log[2*i] + p.window
}

// giveBackOldest forgets the log up to a total of base.
func giveBackOldest(log []int64, base int64) (int64, []int64) {
	first := sort.Search(len(log)/2, func(i int) bool { return log[2*i+1] > base })
	return base, log[2*first:]
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

// prune joins the oldest entries that the newest limit hits already outweigh to the entry after them.
func (p *Policy) prune(log []int64) []int64 {
	total := log[len(log)-1]
	for len(log) > 2 && total-log[1] >= p.limit {
		log = log[2:]
	}
	return log
}

// rebase is a copy of the log whose totals count from 0 instead of base.
func rebase(log []int64, base int64) []int64 {
	log = append([]int64(nil), log...)
	for i := 1; i < len(log); i += 2 {
		log[i] -= base
	}
	return log
}
