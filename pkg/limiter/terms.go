package limiter

import (
	"math"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
)

// slack is how far the clock may be behind the start of a state's window or segment before it counts as set back, in
// microseconds. A clock that is slewed, not set, is behind by far less.
const slack = 1_000_000

// terms are the parameters that all algorithms share.
type terms struct {
	limit  int64 // hits per window
	window int64 // microseconds
	denied ChargeDenied
	// reserve is Params.Reserve, hits. gone is above 0 in a step that refunds a charge of a policy with a Reserve: the
	// TakenAt of the charge's decision, microseconds since the Unix epoch.
	reserve, gone int64
}

// fits reports whether a cost of n passes if left hits of cost 1 would pass, and how many hits to charge for it.
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

// amount returns how many hits to charge for a cost of n, given whether it fits and how many hits of cost 1 would.
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

// micros converts microseconds to a Duration, or to Never if they are too many.
func micros(us int64) time.Duration {
	if us > math.MaxInt64/int64(time.Microsecond) {
		return Never
	}
	return time.Duration(us) * time.Microsecond
}

// ceilDiv returns a/b, rounded up, for a >= 0 and b > 0.
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
