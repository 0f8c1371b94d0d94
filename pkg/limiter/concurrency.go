package limiter

import (
	"sort"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
)

// Concurrency counts requests in flight; hits of negative cost release them.
const Concurrency Algorithm = 8

// NewConcurrency returns a limit for requests in flight. A request that is not released counts until its lease ends.
func NewConcurrency(limit int64, lease time.Duration) Params {
	return Params{Algorithm: Concurrency, Limit: limit, Window: lease}
}

// concurrency is a slidingLog of leases: a hit counts until it is refunded, or until its lease, the Window, ends. A
// refund names the time when its lease was taken (Hit.TakenAt). Leases taken in the same microsecond end in the same
// microsecond, so a refund may free any of them. A refund without a TakenAt frees the oldest lease. The remaining
// leases then end later than necessary but never earlier, as long as no request outlives its lease.
type concurrency struct{ slidingLog }

func newConcurrency(in *Params) (step.Algorithm, error) {
	if most := orDefault(in.MaxLogEntries, step.MaxLogEntries); in.Limit > most {
		return nil, paramError("limit", "concurrency remembers every request in flight, so it takes at most "+
			"max_log_entries = %d, got %d; raise max_log_entries", most, in.Limit)
	}
	return &concurrency{slidingLog{terms: in.terms(), kind: Concurrency, refund: refundOldest}}, nil
}

func (l *concurrency) Traits() step.Traits {
	return step.Traits{Script: "sliding_log", Capacity: l.limit, Largest: l.limit}
}

func (l *concurrency) Step(s step.State, now, n int64, c step.Charge) (next step.State, o step.Outcome) {
	if c == step.Spend {
		c = step.Nothing // a hit that does not fit is never refunded, so it must not count
	}
	next, o = l.slidingLog.Step(s, now, n, c)
	if n > 0 && o.Is&step.Fits != 0 && c <= step.OrPenalty {
		o.Is, o.Delay = o.Is|step.Holds, time.Duration(max(0, now))
	}
	return next, o
}

// TakesBack implements step.TakesBack.
func (l *concurrency) TakesBack(takenAt int64, orOldest bool, now int64) step.Algorithm {
	return l.takesBackAt(takenAt, orOldest && now < takenAt+l.window)
}

// refundOldest removes the n oldest hits from the log, which starts at the total base.
func refundOldest(log []int64, base, n int64) (int64, []int64) {
	if len(log) > 0 {
		base = min(log[len(log)-1], base+n)
	}
	first := sort.Search(len(log)/2, func(i int) bool { return log[2*i+1] > base })
	return base, log[2*first:]
}
