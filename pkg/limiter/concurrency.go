package limiter

import "sort"

// Concurrency counts requests in flight: negative hits give them back.
const Concurrency Algorithm = 8

// concurrency is a slidingLog of leases: a hit counts until it is given back, or until its lease, the Window, ends.
// Which lease a hit gives back is not known, so it is the oldest: those that stay end later than they have to, never
// earlier.
type concurrency struct{ slidingLog }

func newConcurrency(in *Params) (algorithm, error) {
	if most := orDefault(in.MaxLogEntries, MaxLogEntries); in.Limit > most {
		return nil, paramError("limit", "concurrency remembers every request in flight, so it takes at most "+
			"max_log_entries = %d, got %d; raise max_log_entries", most, in.Limit)
	}
	return &concurrency{slidingLog{terms: in.terms(), kind: Concurrency, giveBack: giveBackOldest}}, nil
}

func (l *concurrency) traits() traits {
	return traits{script: "sliding_log", capacity: l.limit, largest: l.limit}
}

func (l *concurrency) step(s State, now, n int64, c Charge) (next State, o outcome) {
	if c == ChargeSpend {
		c = ChargeNothing // nobody gives back what a hit that did not fit would hold
	}
	return l.slidingLog.step(s, now, n, c)
}

// giveBackOldest forgets the log up to n hits after base.
func giveBackOldest(log []int64, base, n int64) (int64, []int64) {
	if len(log) > 0 {
		base = min(log[len(log)-1], base+n)
	}
	first := sort.Search(len(log)/2, func(i int) bool { return log[2*i+1] > base })
	return base, log[2*first:]
}
