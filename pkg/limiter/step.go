package limiter

import (
	"math"
	"slices"
	"time"
)

// maxExact is the largest integer below which every integer is exact in a double: Lua's numbers in Redis.
const maxExact = 1<<53 - 1

// horizon bounds how far ahead of now a step may move a counter, in microseconds (142 years): together with
// the time since 1970 it stays below maxExact.
const horizon = 1 << 52

// State is one counter's state: two integers for most algorithms, a list for those that remember more. What
// the numbers mean is said where the algorithm is. The zero State is a counter that was never hit.
//
// A List is never changed in place where a reader of an older State could see it.
type State struct {
	A, B int64
	List []int64
}

// isNew says whether the state is that of a counter that was never hit.
func (s *State) isNew() bool { return s.A == 0 && s.B == 0 && len(s.List) == 0 }

// Charge says what a step takes of a counter.
type Charge uint8

// The values of Charge.
const (
	ChargeIfFits    Charge = iota // the cost if it fits, else nothing
	ChargeOrPenalty               // the cost if it fits, else what ChargeDenied says
	ChargePenalty                 // what ChargeDenied says, whether or not the cost fits
	ChargeNothing
	ChargeSpend // what is left, up to the cost, or all of the cost where ChargeDenied is ChargeFull
)

// Step decides a hit of cost n at time now, in microseconds since the Unix epoch, on state s: the cost is
// charged if it fits, and otherwise ChargeDenied says what is. The new state matters for d.ResetAfter, after
// which the limit is fully available again; a bucket that starts empty is remembered for a while longer.
//
// What it returns shares no memory with s that a later step could change: one state may be stepped several times.
func (p *Policy) Step(s State, now, n int64) (next State, d Decision) {
	s.List = slices.Clip(s.List)
	next, o := p.algorithm.step(s, now, n, ChargeOrPenalty)
	if !o.changed() {
		next = s
	}
	return next, o.decision()
}

// outcome is what a step decides: a Decision in four words.
type outcome struct {
	is        verdict
	remaining int64
	delay     time.Duration // RetryAfter if the hit does not fit, Wait or TakenAt if it does
	reset     time.Duration
}

// verdict is a set of bits.
type verdict uint8

const (
	fits    verdict = 1 << iota // Decision.Allowed
	changes                     // the next state differs from the one before
	cuts                        // the state before was further ahead than the policy can put it
	holds                       // the hit was taken to be given back: delay is Decision.TakenAt
)

// verdictOf is the verdict of a hit that fits if ok, changes the state if changed, and has cut it so if isCut.
func verdictOf(ok, changed, isCut bool) verdict {
	v := verdict(0)
	if ok {
		v = fits
	}
	if changed {
		v |= changes
	}
	if isCut {
		v |= cuts
	}
	return v
}

// slack is by how much the clock may be behind the next window's or segment's start before it counts as set back, in
// microseconds: a clock that is not set is slewed by far less.
const slack = 1_000_000

func (o *outcome) changed() bool { return o.is&changes != 0 }

func (o *outcome) decision() Decision {
	d := Decision{Allowed: o.is&fits != 0, Remaining: o.remaining, ResetAfter: o.reset}
	switch {
	case !d.Allowed:
		d.RetryAfter = o.delay
	case o.is&holds != 0:
		d.TakenAt = int64(o.delay)
	default:
		d.Wait = o.delay
	}
	return d
}

// terms are what all algorithms share: how many hits pass per window, and what a denied request takes.
type terms struct {
	limit  int64 // hits
	window int64 // microseconds
	denied ChargeDenied
}

// fits reports whether a cost of n passes where left hits of cost 1 would, and how many hits to charge for it.
func (t *terms) fits(left, n int64, c Charge) (ok bool, take int64) {
	switch {
	case n < 0:
		ok = true
	case n == 0:
		ok = left >= 1
	default:
		ok = n <= left
	}
	return ok, t.amount(ok, left, n, c)
}

// amount is how many hits to charge for a cost of n, where ok says whether it fits and left how many of cost 1 would.
func (t *terms) amount(ok bool, left, n int64, c Charge) (take int64) {
	switch {
	case c == ChargeNothing:
	case n < 0, ok && c != ChargePenalty && c != ChargeSpend:
		take = n
	case c == ChargeIfFits:
	case t.denied == ChargeFull:
		take = n
	case t.denied == ChargeRemaining, c == ChargeSpend:
		take = min(n, left)
	}
	return take
}

// micros is a span of microseconds as a Duration.
func micros(us int64) time.Duration {
	if us > math.MaxInt64/int64(time.Microsecond) {
		return Never
	}
	return time.Duration(us) * time.Microsecond
}

// ceilDiv divides a >= 0 by b > 0, rounding up.
func ceilDiv(a, b int64) int64 {
	q := a / b
	if q*b != a {
		q++
	}
	return q
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func orDefault(v, otherwise int64) int64 {
	if v == 0 {
		return otherwise
	}
	return v
}

func fromBool(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
