package guard_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Permits of a fixed window are neither spent nor released in the next one.
func TestWindowEnds(t *testing.T) {
	for _, align := range []limiter.Align{limiter.AlignEpoch, limiter.AlignFirstHit} {
		synctest.Test(t, func(t *testing.T) {
			f := newFar(t)
			l := newLeases(t, f)
			p := leased(t, limiter.Params{
				Algorithm: limiter.FixedWindow, Align: align, Limit: 1000,
				Window: 170 * time.Millisecond,
			})
			var ends time.Time // of the window that the store counts in
			inWindow, charged := 0, int64(0)
			f.set(func(n *network) {
				n.see = func(hits []limiter.Hit, out []limiter.Decision) {
					for i, h := range hits {
						if now := time.Now(); !now.Before(ends) {
							ends, charged, inWindow = now.Add(out[i].ResetAfter), 0, 0
						}
						if out[i].Allowed {
							charged += h.N
						}
						if got := p.Limit() - out[i].Remaining; got != charged {
							t.Errorf("the store counts %d after %v, want %d: something of another window was released", got, hits, charged)
							charged = got
						}
					}
				}
			})
			for i := range 30_000 {
				passed := take(t, l, limiter.Hit{Key: "k", Policy: p, Route: onLease, N: 1})[0].Allowed
				f.between(func() {
					if passed && time.Now().Before(ends) {
						inWindow++
					}
					if inWindow > 1000 {
						t.Fatalf("%d passed in one window", inWindow)
					}
				})
				if i%2000 < 1800 {
					time.Sleep(20 * time.Microsecond)
				} else {
					time.Sleep(time.Duration(i%7) * 300 * time.Microsecond)
				}
			}
			if s := settled(l); s.Answers < 10_000 || s.Released == 0 {
				t.Errorf("%+v: too little was leased to tell", s)
			}
		})
	}
}
