package memstore

import (
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// clock is the store's two clocks. One never steps, and everything counts by it but windows that begin where the clocks
// on the wall say so: those go by the time since the Unix epoch, which is set while the process runs. It starts before
// the first answer of a time server, and a machine that was suspended finds itself hours later.
type clock struct {
	steady func() int64 // microseconds since the Unix epoch at the start, and the time elapsed since
	wall   func() int64 // microseconds since the Unix epoch; nil: there is only the other one

	ahead   atomic.Int64 // by how much the wall clock is followed ahead of the steady one, in microseconds
	due     atomic.Int64 // when they are compared next, by the steady one
	steps   atomic.Uint64
	stepped atomic.Int64 // the sum of the steps that were not reported yet, in microseconds
}

const (
	// maxDrift is by how much the two clocks may differ: a wall clock that is not set is slewed by far less.
	maxDrift = int64(time.Second / time.Microsecond)
	// compareEvery is how often they are compared, by the steady clock, which stands still while a machine is suspended.
	compareEvery = int64(10 * time.Millisecond / time.Microsecond)
)

// monotonic is a clock of microseconds since the epoch that never steps back.
func monotonic() func() int64 {
	start := time.Now()
	epoch := start.UnixMicro()
	return func() int64 { return epoch + time.Since(start).Microseconds() }
}

func wallClock() int64 { return time.Now().UnixMicro() }

// clocks reads the clocks.
func (c *clock) clocks(follow bool) storekit.Clocks {
	now := c.steady()
	if !follow || c.wall == nil {
		return storekit.Clocks{Steady: now, Wall: now}
	}
	if now >= c.due.Load() {
		c.compare(now)
	}
	return storekit.Clocks{Steady: now, Wall: now + c.ahead.Load()}
}

// compare follows the wall clock if it is too far from where it was followed.
func (c *clock) compare(now int64) {
	c.due.Store(now + compareEvery)
	ahead := c.ahead.Load()
	step := c.wall() - now - ahead
	if -maxDrift <= step && step <= maxDrift {
		return
	}
	if c.ahead.CompareAndSwap(ahead, ahead+step) {
		c.steps.Add(1)
		c.stepped.Add(step)
	}
}
