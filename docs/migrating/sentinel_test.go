package migrating

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// leapArray is how Sentinel counts requests: those of the last half second and of the one before it.
type leapArray struct {
	count        int64
	half         int64 // half seconds since the Unix epoch
	newest, last int64 // hits of that one and of the one before
}

// rejecting is what sentinel.md makes of a FlowRule with the default behavior.
func rejecting(count int64) limiter.Params {
	return limiter.Params{
		Algorithm: limiter.SlidingWindow, Limit: count, Window: time.Second, Segments: 2, Oldest: limiter.OldestNone,
	}
}

func (l *leapArray) admits(now, n int64) bool {
	switch half := now / 500; half - l.half {
	case 0:
	case 1:
		l.half, l.last, l.newest = half, l.newest, 0
	default:
		l.half, l.last, l.newest = half, 0, 0
	}
	return l.last+l.newest+n <= l.count
}

// TestSentinelRejects: both admit the same requests.
func TestSentinelRejects(t *testing.T) {
	onPage(t, "sentinel.md", "reject", rejecting(20))
	rapid.Check(t, func(t *rapid.T) {
		l := &leapArray{count: rapid.Int64Range(1, 50).Draw(t, "count")}
		h := newHistory(t, rejecting(l.count), time.Millisecond)
		for range h.requests() {
			h.move(2 * time.Second)
			n := h.cost(min(l.count, 5))
			d := h.ask(n)
			if d.Allowed != l.admits(h.since(time.Millisecond), n) {
				t.Fatalf("%+v, cost %d at %d: Weir says %+v", l, n, h.now, d)
			}
			if d.Allowed {
				l.newest += n
			}
		}
	})
}

// throttling is Sentinel's rate limiter: each request goes on as long after the one before it as its cost takes.
type throttling struct {
	count, maxQueueingTimeMs int64
	used                     bool
	latest                   int64 // milliseconds
}

// rule is what sentinel.md makes of a FlowRule with the rate limiter behavior.
func (s *throttling) rule() limiter.Params {
	in := limiter.Params{Algorithm: limiter.Funnel, Limit: s.count, Window: time.Second, Burst: 1}
	if s.maxQueueingTimeMs > 0 {
		in.Algorithm, in.MaxWait = limiter.LeakyQueue, time.Duration(s.maxQueueingTimeMs)*time.Millisecond
		in.Burst = (s.maxQueueingTimeMs*s.count + 999) / 1000
	}
	return in
}

// ask returns for how many milliseconds a request waits, and whether that is not too long.
func (s *throttling) ask(now, n int64) (wait int64, admitted bool) {
	goes := now
	if s.used {
		goes = max(now, s.latest+n*1000/s.count)
	}
	if goes-now > s.maxQueueingTimeMs {
		return 0, false
	}
	s.latest, s.used = goes, true
	return goes - now, true
}

// TestSentinelThrottles: both admit the same requests, after the same waits. The counts divide 1000, since
// Sentinel counts others in nanoseconds, which it rounds.
func TestSentinelThrottles(t *testing.T) {
	onPage(t, "sentinel.md", "throttle", (&throttling{count: 10, maxQueueingTimeMs: 500}).rule())
	counts := []int64{1, 2, 4, 5, 8, 10, 20, 25, 40, 50, 100, 125, 200, 250, 500}
	rapid.Check(t, func(t *rapid.T) {
		s := &throttling{
			count:             rapid.SampledFrom(counts).Draw(t, "count"),
			maxQueueingTimeMs: rapid.SampledFrom([]int64{0, 1, 20, 100, 500, 1500, 3000}).Draw(t, "maxQueueingTimeMs"),
		}
		h := newHistory(t, s.rule(), time.Millisecond)
		for range h.requests() {
			h.move(3 * time.Second / time.Duration(s.count))
			n := h.cost(min(5, h.policy.Largest()))
			wait, admitted := s.ask(h.since(time.Millisecond), n)
			if d := h.ask(n); d.Allowed != admitted || d.Wait != time.Duration(wait)*time.Millisecond {
				t.Fatalf("%+v: %t after %d ms, Weir says %+v", s, admitted, wait, d)
			}
		}
	})
}

// warmUp is Sentinel's WarmUpController: a bucket of tokens says how cold the resource is, and that says how many
// requests a second may pass.
type warmUp struct {
	count, period, factor float64 // a second; seconds
	warning, most         float64
	stored                float64
	second                int64
}

func newWarmUp(count, period, factor float64, second int64) *warmUp {
	w := &warmUp{count: count, period: period, factor: factor, second: second}
	w.warning = float64(int64(period*count) / int64(factor-1))
	w.most = w.warning + float64(int64(2*period*count/(1+factor)))
	w.stored = w.most
	return w
}

// admitted is how many of more requests than that are admitted in the next second, after so many in the one before.
func (w *warmUp) admitted(before float64) float64 {
	if w.stored < w.warning || w.stored > w.warning && before < float64(int64(w.count)/int64(w.factor)) {
		w.stored = min(w.most, w.stored+w.count)
	}
	w.stored = max(0, w.stored-before)
	limit := w.count
	if w.stored >= w.warning {
		slope := (w.factor - 1) / w.count / (w.most - w.warning)
		limit = 1 / ((w.stored-w.warning)*slope + 1/w.count)
	}
	return float64(int64(limit))
}

// TestSentinelWarmsUp: under four times the count, Weir has admitted as much as Sentinel from the end of the warm-up
// on, and up to a third more. Sentinel counts whole requests a second, and cuts what a cold second may have.
func TestSentinelWarmsUp(t *testing.T) {
	rule := func(count int64, period time.Duration) limiter.Params {
		return limiter.Params{
			Algorithm: limiter.SmoothWarmingUp, Limit: count, Window: time.Second, WarmUp: period,
			MaxWait: (2 * time.Second / time.Duration(count)).Truncate(time.Millisecond),
		}
	}
	onPage(t, "sentinel.md", "warm-up", rule(100, 10*time.Second))
	for _, count := range []int64{20, 100, 250} {
		for _, period := range []int64{5, 10, 20} {
			p := newPolicy(t, rule(count, time.Duration(period)*time.Second))
			s := newWarmUp(float64(count), float64(period), 3, 0)
			var state limiter.State
			weir, other, before := 0.0, 0.0, 0.0
			now := start
			for second := range 3 * period {
				for end := now + 1_000_000; now < end; now += 1_000_000 / (4 * count) {
					var d limiter.Decision
					if state, d = p.Step(state, now, 1); d.Allowed {
						weir++
					}
				}
				before = s.admitted(before)
				if other += before; second+1 >= period {
					between(t, "the share in percent", int64(100*weir/other), 100, 133)
				}
			}
		}
	}
}
