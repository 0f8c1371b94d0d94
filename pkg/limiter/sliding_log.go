package limiter

import (
	"slices"
	"sort"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
)

// SlidingLog remembers every admitted hit until it leaves the window.
const SlidingLog Algorithm = 5

// NewSlidingLog returns a limit of limit hits in any interval of length window.
func NewSlidingLog(limit int64, window time.Duration) Params {
	return Params{Algorithm: SlidingLog, Limit: limit, Window: window}
}

// slidingLog is the log of admitted hits. A hit at time t counts until t plus the window. The list holds pairs (time,
// total), oldest first, where total is the sum of all costs up to and including that entry; A is the total before the
// first pair. So the hits in the window are the difference of two totals, which a binary search finds.
//
// Memory is O(Limit): entries that have left the window are dropped, and each entry costs at least 1. If denied hits
// are logged, too (ChargeFull), entries before the newest Limit hits are merged into the entry after them, because they
// cannot change a decision before that entry leaves the window. Merged hits still count, because after a refund of
// newer hits they matter again. They leave with the entry into which they were merged, never before their own end.
//
// If the clock was set back, entries after now are cut, which means that they count from now.
//
// Totals stay below 2^53: debt stops growing at step.Horizon, and totals that have become too large start again from 0.
type slidingLog struct {
	terms

	kind   Algorithm
	refund func(log []int64, base, n int64) (int64, []int64)
}

func newSlidingLog(in *Params) (step.Algorithm, error) {
	if most := orDefault(in.MaxLogEntries, step.MaxLogEntries); in.Limit > most {
		return nil, paramError("limit", "a sliding_log remembers every hit, so it takes at most max_log_entries = %d "+
			"per window, got %d; use sliding_window, or raise max_log_entries", most, in.Limit)
	}
	return &slidingLog{terms: in.terms(), kind: SlidingLog, refund: refundNewest}, nil
}

func (l *slidingLog) Traits() step.Traits {
	return step.Traits{
		Script: "sliding_log", Capacity: l.limit, Largest: l.limit, Cacheable: l.denied == ChargeNone,
	}
}

func (l *slidingLog) Args() []int64 { return []int64{l.limit, l.window, int64(l.kind)} }

func (l *slidingLog) Step(s step.State, now, n int64, c step.Charge) (next step.State, o step.Outcome) {
	log, base := s.List, s.A
	isCut := len(log) > 0 && log[len(log)-2] > now
	if isCut {
		log = cutLog(log, now)
	}
	first := sort.Search(len(log)/2, func(i int) bool { return log[2*i] > now-l.window })
	if first > 0 {
		base, log = log[2*first-1], log[2*first:]
	}
	total := base
	if len(log) > 0 {
		total = log[len(log)-1]
	}
	before := total - base
	ok, take := l.fits(max(0, l.limit-before), n, c)
	take = min(take, step.Horizon-before)
	switch {
	case take < 0:
		base, log = l.refund(log, base, -take)
	case take > 0:
		if total+take > step.Exact {
			log, total, base = rebase(log, base), before, 0
		}
		log = append(log, now, total+take)
		log = l.prune(log)
	}
	if !ok {
		o.Delay = Never
		if need := max(n, 1); need <= l.limit {
			o.Delay = micros(l.leaves(log, need) - now)
		}
	}
	o.Remaining = l.limit
	if len(log) > 0 {
		o.Remaining = max(0, l.limit-(log[len(log)-1]-base))
		o.Reset = micros(log[len(log)-2] + l.window - now)
	}
	o.Is = step.VerdictOf(ok, take > 0 || take < 0 && before > 0 || isCut, isCut)
	if len(log) == 0 {
		return step.State{}, o
	}
	return step.State{A: base, List: log}, o
}

// leaves returns when enough of the log has left the window for a cost of need, which does not fit now.
func (l *slidingLog) leaves(log []int64, need int64) int64 {
	total := log[len(log)-1]
	i := sort.Search(len(log)/2, func(i int) bool { return total-log[2*i+1] <= l.limit-need })
	return log[2*i] + l.window
}

// TakesBack implements step.TakesBack.
func (l *slidingLog) TakesBack(gone int64, _ bool, _ int64) step.Algorithm {
	return l.takesBackAt(gone-l.window, false)
}

// takesBackAt returns a slidingLog whose refunds remove hits of the time at. If orOldest, and there are none of that
// time, a refund removes the oldest hits.
func (l *slidingLog) takesBackAt(at int64, orOldest bool) *slidingLog {
	own := *l
	own.refund = func(log []int64, base, n int64) (int64, []int64) {
		from, to := totalBefore(log, base, at), totalBefore(log, base, at+1)
		if from == to && orOldest {
			return refundOldest(log, base, n)
		}
		return base, cutOut(log, base, from, min(n, to-from))
	}
	return &own
}

// totalBefore returns the log's running total before the time at.
func totalBefore(log []int64, base, at int64) int64 {
	if i := sort.Search(len(log)/2, func(i int) bool { return log[2*i] >= at }); i > 0 {
		return log[2*i-1]
	}
	return base
}

// refundNewest removes the n newest hits from the log.
func refundNewest(log []int64, base, n int64) (int64, []int64) {
	if len(log) == 0 {
		return base, nil
	}
	return base, cutOut(log, base, max(base, log[len(log)-1]-n), n)
}

// cutOut returns a copy of the log without the n hits that follow the total from.
func cutOut(log []int64, base, from, n int64) []int64 {
	after := func(total int64) int {
		return 2 * sort.Search(len(log)/2, func(i int) bool { return log[2*i+1] > total })
	}
	first := after(from)
	if first > 0 {
		base = log[first-1]
	}
	rest := slices.Clone(log[:first])
	if base < from { // keep a part of the first entry
		rest = append(rest, log[first], from)
	}
	for i := after(from + n); i < len(log); i += 2 {
		rest = append(rest, log[i], log[i+1]-n)
	}
	return rest
}

// prune merges the oldest entry into the next one for as long as the entries after it hold at least limit hits.
func (l *slidingLog) prune(log []int64) []int64 {
	total := log[len(log)-1]
	for len(log) > 2 && total-log[1] >= l.limit {
		log = log[2:]
	}
	return log
}

// cutLog returns a copy of the log in which one entry at now replaces the entries after now.
func cutLog(log []int64, now int64) []int64 {
	first := sort.Search(len(log)/2, func(i int) bool { return log[2*i] > now })
	return append(slices.Clone(log[:2*first]), now, log[len(log)-1])
}

// rebase returns a copy of the log whose totals count from 0 instead of base.
func rebase(log []int64, base int64) []int64 {
	log = append([]int64(nil), log...)
	for i := 1; i < len(log); i += 2 {
		log[i] -= base
	}
	return log
}
