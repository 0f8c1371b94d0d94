package migrating

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// limitador has the settings of one of Limitador's limits, and its arithmetic: a count that expires so many seconds
// after the first hit.
type limitador struct{ maxValue, seconds, count, expires int64 }

// rule is what limitador.md makes of the settings.
func (l *limitador) rule() limiter.Params {
	return limiter.Params{
		Algorithm: limiter.FixedWindow, Limit: l.maxValue, Window: time.Duration(l.seconds) * time.Second,
		Align: limiter.AlignFirstHit, ChargeDenied: limiter.ChargeNone,
	}
}

func (l *limitador) ask(now, n int64) (allowed bool, left int64) {
	if l.expires <= now {
		l.count = 0
	}
	if l.count+n > l.maxValue {
		return false, l.maxValue - l.count
	}
	if l.expires <= now {
		l.expires = now + l.seconds*1_000_000
	}
	l.count += n
	return true, l.maxValue - l.count
}

// TestLimitador: answers and remaining are equal.
func TestLimitador(t *testing.T) {
	onPage(t, "limitador.md", "post", (&limitador{maxValue: 5, seconds: 60}).rule())
	onPage(t, "limitador.md", "all", (&limitador{maxValue: 1_000_000, seconds: 60}).rule())
	rapid.Check(t, func(t *rapid.T) {
		l := &limitador{
			maxValue: rapid.Int64Range(0, 50).Draw(t, "max_value"), seconds: rapid.Int64Range(1, 3600).Draw(t, "seconds"),
		}
		h := newHistory(t, l.rule(), time.Microsecond)
		for range h.requests() {
			h.move(time.Duration(l.seconds) * time.Second)
			n := h.cost(l.maxValue + 1)
			allowed, left := l.ask(h.now, n)
			if d := h.ask(n); d.Allowed != allowed || d.Remaining != left {
				t.Fatalf("%+v, delta %d: %t, %d left; Weir says %+v", l, n, allowed, left, d)
			}
		}
	})
}
