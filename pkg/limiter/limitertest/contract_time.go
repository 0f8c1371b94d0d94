package limitertest

import (
	"fmt"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// windowEnds checks that a fixed window reports its end in every mode: for bans, peeks, refunds and first hits.
func windowEnds(f *fixture) {
	f.clock.Advance(20 * time.Minute)
	for _, align := range []limiter.Align{limiter.AlignEpoch, limiter.AlignFirstHit, limiter.AlignCalendar} {
		for _, limit := range []int64{0, 5} {
			p := policy(f, limiter.Params{Algorithm: limiter.FixedWindow, Limit: limit, Window: time.Hour, Align: align})
			want := 40 * time.Minute
			if align == limiter.AlignFirstHit {
				want = time.Hour // the window would begin with the hit
			}
			for _, n := range []int64{0, -1, 1, 9, 0, -1, 0} {
				key := fmt.Sprintf("%v of %d", align, limit)
				if d := f.take(limiter.Hit{Key: key, Policy: p, N: n, Look: n == 0})[0]; d.ResetAfter != want {
					f.Errorf("%s, cost %d: reset after %s, want %s", key, n, d.ResetAfter, want)
				}
			}
			for _, mode := range []limiter.Mode{limiter.Enforce, limiter.Shadow, limiter.Quota} {
				hit := limiter.Hit{Key: "fresh", Policy: p, Look: true, Mode: mode}
				if d := f.take(hit, limiter.Hit{Key: "ban", Policy: f.hourly(limiter.Funnel, 0), N: 1})[0]; d.ResetAfter != want {
					f.Errorf("%v of %d, beside a ban: reset after %s, want %s", align, limit, d.ResetAfter, want)
				}
			}
		}
	}
}
