package migrating

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// throttle has the arguments of CL.THROTTLE, and its arithmetic: GCRA in nanoseconds.
type throttle struct {
	maxBurst, count, period int64 // the period in seconds
	arrival                 int64 // the theoretical arrival time, nanoseconds
}

// rule is what redis-cell.md makes of the arguments.
func (c *throttle) rule() limiter.Params {
	return limiter.Params{
		Algorithm: limiter.Funnel, Limit: c.count, Window: time.Duration(c.period) * time.Second, Burst: c.maxBurst + 1,
	}
}

// ask decides a quantity at a time in nanoseconds, and returns how many are left.
func (c *throttle) ask(now, quantity int64) (allowed bool, left int64) {
	emission := c.period * int64(time.Second) / c.count
	tolerance := emission * (c.maxBurst + 1)
	arrival := max(now, c.arrival) + quantity*emission
	if allowed = now >= arrival-tolerance; allowed {
		c.arrival = arrival
	}
	return allowed, max(0, now-max(now, c.arrival)+tolerance) / emission
}

// TestRedisCell: where the time of a hit is whole microseconds, answers and remaining are equal. That the module itself
// does so is what TestRedisCell of pkg/limiter/redisstore holds.
func TestRedisCell(t *testing.T) {
	onPage(t, "redis-cell.md", "per-user", (&throttle{maxBurst: 15, count: 30, period: 60}).rule())
	rapid.Check(t, func(t *rapid.T) {
		c := &throttle{
			maxBurst: rapid.Int64Range(0, 50).Draw(t, "max_burst"),
			count:    rapid.SampledFrom([]int64{1, 2, 5, 10, 50, 100, 1000}).Draw(t, "count"),
			period:   rapid.Int64Range(1, 3600).Draw(t, "period"),
		}
		h := newHistory(t, c.rule(), time.Microsecond)
		for range h.requests() {
			h.move(time.Duration(c.period*(c.maxBurst+2)) * time.Second / time.Duration(c.count))
			n := h.cost(c.maxBurst + 1)
			allowed, left := c.ask(h.now*1000, n)
			if d := h.ask(n); d.Allowed != allowed || d.Remaining != left {
				t.Fatalf("%+v, quantity %d: %t, %d left; Weir says %+v", c, n, allowed, left, d)
			}
		}
	})
}
