package limiter

import (
	"math"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
)

// slack is by how much the clock may be behind the next window's or segment's start before it counts as set back, in
// microseconds: a clock that is not set is slewed by far less.
const slack = 1_000_000

// terms are what all algorithms share: how many hits pass per window, and what a denied request takes.
type terms struct {
	limit  int64 // hits
	window int64 // microseconds
	denied ChargeDenied
}

// fits reports whether a cost of n passes where left hits of cost 1 would, and how many hits to charge for it.
func (t *terms) fits(left, n int64, c step.Charge) (ok bool, take int64) {
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
func (t *terms) amount(ok bool, left, n int64, c step.Charge) (take int64) {
	switch {
	case c == step.Nothing:
	case n < 0, ok && c != step.Penalty && c != step.Spend:
		take = n
	case c == step.IfFits:
	case t.denied == ChargeFull:
		take = n
	case t.denied == ChargeRemaining, c == step.Spend:
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
