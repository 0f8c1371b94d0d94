package migrating

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// guava is a RateLimiter: stored permits, and when the next request is free to go. Its numbers are floating-point, and
// times are cut to whole microseconds.
type guava struct {
	maxStored, stored float64
	interval          float64 // microseconds between two requests
	idle              float64 // microseconds that bring one stored permit
	next              int64   // microseconds
	// price is what so many stored permits cost, in microseconds.
	price func(stored, take float64) int64
}

// newBursty is RateLimiter.create(permitsPerSecond), idle for a second.
func newBursty(perSecond, now int64) *guava {
	rate := float64(perSecond)
	g := &guava{maxStored: rate, interval: 1e6 / rate, next: now}
	g.stored, g.idle = g.maxStored, g.interval
	g.price = func(_, _ float64) int64 { return 0 }
	return g
}

// newWarming is RateLimiter.create(permitsPerSecond, warmupPeriod, unit). Above a threshold a stored permit costs from
// one interval up to three, in a line.
func newWarming(perSecond int64, warmUp time.Duration, now int64) *guava {
	g := &guava{interval: 1e6 / float64(perSecond), next: now}
	period, cold := float64(warmUp.Microseconds()), 3*g.interval
	threshold := period / 2 / g.interval
	g.maxStored = threshold + 2*period/(g.interval+cold)
	g.stored, g.idle = g.maxStored, period/g.maxStored
	slope := (cold - g.interval) / (g.maxStored - threshold)
	g.price = func(stored, take float64) int64 {
		dear := max(0, min(stored-threshold, take))
		from := g.interval + slope*max(0, stored-threshold)
		to := g.interval + slope*max(0, stored-threshold-dear)
		return int64(dear*(from+to)/2) + int64(g.interval*(take-dear))
	}
	return g
}

// wait is for how many microseconds tryAcquire would have to wait.
func (g *guava) wait(now int64) int64 {
	if now > g.next {
		g.stored = min(g.maxStored, g.stored+float64(now-g.next)/g.idle)
		g.next = now
	}
	return g.next - now
}

// take acquires permits, whose price the next request waits for.
func (g *guava) take(permits int64) {
	stored := min(float64(permits), g.stored)
	g.next += g.price(g.stored, stored) + int64((float64(permits)-stored)*g.interval)
	g.stored -= stored
}

// guavaRule is what guava.md makes of create(perSecond) and tryAcquire(permits, timeout); with a warm-up period, of
// create(perSecond, warmUp).
func guavaRule(perSecond int64, timeout, warmUp time.Duration) limiter.Params {
	in := limiter.Params{Algorithm: limiter.SmoothBursty, Limit: perSecond, Window: time.Second, MaxWait: timeout}
	if warmUp > 0 {
		in.Algorithm, in.WarmUp = limiter.SmoothWarmingUp, warmUp
	}
	return in
}

// TestGuava: both admit the same requests after the same waits, but for what Guava cuts off: less than 3 microseconds
// for each request.
func TestGuava(t *testing.T) {
	onPage(t, "guava.md", "bursty", guavaRule(5, 500*time.Millisecond, 0))
	onPage(t, "guava.md", "warming", guavaRule(50, 100*time.Millisecond, 4*time.Second))
	for name, warms := range map[string]bool{"SmoothBursty": false, "SmoothWarmingUp": true} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				perSecond := rapid.Int64Range(1, 1000).Draw(t, "permitsPerSecond")
				timeout := time.Millisecond * time.Duration(rapid.IntRange(0, 3000).Draw(t, "timeout"))
				g, warmUp := newBursty(perSecond, start), time.Duration(0)
				if warms {
					warmUp = time.Second * time.Duration(rapid.IntRange(1, 20).Draw(t, "warmup"))
					g = newWarming(perSecond, warmUp, start)
				}
				h := newHistory(t, guavaRule(perSecond, timeout, warmUp), time.Microsecond)
				for i := range h.requests() {
					h.move(2*time.Second + warmUp)
					permits := h.cost(2 * perSecond)
					wait, cut := g.wait(h.now), 3*int64(i)
					switch d := h.ask(permits); {
					case d.Allowed:
						between(t, "Guava's wait", wait, d.Wait.Microseconds()-cut, d.Wait.Microseconds()+cut)
						g.take(permits)
					default:
						between(t, "the wait that Guava refuses", wait+cut, timeout.Microseconds()+1, 1<<40)
					}
				}
			})
		})
	}
}

// TestGuavaStartsEmpty: a limiter that was just created has stored nothing, as with initial: empty, as long as no pause
// is longer than a second: Weir forgets a key whose store has been full for so long.
func TestGuavaStartsEmpty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		perSecond := rapid.SampledFrom([]int64{1, 5, 10, 100}).Draw(t, "permitsPerSecond")
		in := guavaRule(perSecond, time.Second, 0)
		in.Initial = limiter.InitialEmpty
		g, h := newBursty(perSecond, start), newHistory(t, in, time.Microsecond)
		g.stored = 0
		for i := range h.requests() {
			wait, cut := g.wait(h.now), 3*int64(i)
			d := h.ask(1)
			if d.Allowed {
				between(t, "Guava's wait", wait, d.Wait.Microseconds()-cut, d.Wait.Microseconds()+cut)
				g.take(1)
			} else {
				between(t, "the wait that Guava refuses", wait+cut, time.Second.Microseconds()+1, 1<<40)
			}
			h.move(time.Second)
		}
	})
}
