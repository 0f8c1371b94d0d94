package migrating

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// bandwidth has the settings of Bucket4j's Bandwidth, and its arithmetic. The tokens are whole numbers, with the part
// of one that greedy refill has brought.
type bandwidth struct {
	capacity, tokens int64 // refillGreedy(tokens, period) or refillIntervally
	period           time.Duration
	intervally       bool

	size int64         // tokens
	part int64         // of a token, in parts of which it has as many as the period has nanoseconds
	last time.Duration // when it was refilled
}

// rule is what bucket4j.md makes of the settings.
func (b *bandwidth) rule() limiter.Params {
	in := limiter.Params{Algorithm: limiter.TokenBucket, Limit: b.tokens, Window: b.period, Burst: b.capacity}
	if b.intervally {
		in.Refill = limiter.RefillInterval
	}
	return in
}

func (b *bandwidth) refill(now time.Duration) {
	elapsed := now - b.last
	if b.intervally {
		elapsed -= elapsed % b.period
	}
	if elapsed <= 0 {
		return
	}
	b.last += elapsed
	b.size += int64(elapsed/b.period) * b.tokens
	b.part += int64(elapsed%b.period) * b.tokens
	b.size, b.part = b.size+b.part/int64(b.period), b.part%int64(b.period)
	if b.size >= b.capacity {
		b.size, b.part = b.capacity, 0
	}
}

// retry is how long it takes until so many tokens are there.
func (b *bandwidth) retry(now time.Duration, n int64) time.Duration {
	lacks := n - b.size
	if b.intervally {
		return b.last + b.period*time.Duration((lacks+b.tokens-1)/b.tokens) - now
	}
	return (b.period*time.Duration(lacks) - time.Duration(b.part)) / time.Duration(b.tokens)
}

func drawBandwidth(t *rapid.T, intervally bool) *bandwidth {
	b := &bandwidth{
		capacity: rapid.Int64Range(1, 50).Draw(t, "capacity"), tokens: rapid.Int64Range(1, 50).Draw(t, "tokens"),
		period: time.Millisecond * time.Duration(rapid.IntRange(1, 60_000).Draw(t, "period")), intervally: intervally,
		last: time.Duration(start) * time.Microsecond,
	}
	b.size = b.capacity
	return b
}

// TestBucket4j: tokens, answers and the time to wait are equal; with refillIntervally until the bucket is full again.
func TestBucket4j(t *testing.T) {
	onPage(t, "bucket4j.md", "burst", (&bandwidth{capacity: 50, tokens: 10, period: time.Second}).rule())
	onPage(t, "bucket4j.md", "batches",
		(&bandwidth{capacity: 100, tokens: 100, period: time.Minute, intervally: true}).rule())
	for name, intervally := range map[string]bool{"greedy": false, "intervally": true} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				b := drawBandwidth(t, intervally)
				h := newHistory(t, b.rule(), time.Microsecond)
				for i := range h.requests() {
					if i > 0 || !intervally { // whose phase is the bucket's creation
						h.move(2 * b.period)
					}
					now := time.Duration(h.now) * time.Microsecond
					if b.refill(now); intervally && i > 0 && b.size == b.capacity {
						return
					}
					n := h.cost(b.capacity)
					d := h.ask(n)
					if d.Allowed != (n <= b.size) {
						t.Fatalf("%+v, cost %d: Weir says %+v", b, n, d)
					}
					if d.Allowed {
						b.size -= n
					} else {
						between(t, "retry-after", d.RetryAfter-b.retry(now, n), 0, time.Microsecond)
					}
					if d.Remaining != b.size {
						t.Fatalf("%+v, cost %d: Weir says %+v", b, n, d)
					}
				}
			})
		})
	}
}

// TestBucket4jSeveralBandwidths: all must have the tokens, and all are charged or none.
func TestBucket4jSeveralBandwidths(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := []*bandwidth{drawBandwidth(t, false), drawBandwidth(t, false)}
		h := newHistory(t, all[0].rule(), time.Microsecond)
		hits := []limiter.Hit{{Key: "a", Policy: h.policy}, {Key: "b", Policy: newPolicy(t, all[1].rule())}}
		slots, out := make([]limiter.Slot, 2), make([]limiter.Decision, 2)
		for range h.requests() {
			h.move(2 * all[0].period)
			n := h.cost(min(all[0].capacity, all[1].capacity))
			fits := true
			for i, b := range all {
				b.refill(time.Duration(h.now) * time.Microsecond)
				fits = fits && n <= b.size
				hits[i].N = n
				if slots[i].Changed {
					slots[i] = limiter.Slot{State: slots[i].Next}
				}
			}
			if limiter.Decide(h.now, hits, slots, out) != fits {
				t.Fatalf("%+v %+v, cost %d: Weir says %+v", all[0], all[1], n, out)
			}
			for _, b := range all {
				if fits {
					b.size -= n
				}
			}
		}
	})
}

// TestBucket4jAligned: refillIntervallyAligned with a first refill at a multiple of its period, and as many tokens as
// the capacity, is a window of the epoch.
func TestBucket4jAligned(t *testing.T) {
	rule := func(b *bandwidth) limiter.Params {
		return limiter.Params{
			Algorithm: limiter.FixedWindow, Limit: b.capacity, Window: b.period, ChargeDenied: limiter.ChargeNone,
		}
	}
	onPage(t, "bucket4j.md", "aligned", rule(&bandwidth{capacity: 400, period: time.Hour}))
	rapid.Check(t, func(t *rapid.T) {
		b := drawBandwidth(t, true)
		b.tokens = b.capacity
		b.last -= b.last % b.period
		h := newHistory(t, rule(b), time.Microsecond)
		for range h.requests() {
			h.move(2 * b.period)
			b.refill(time.Duration(h.now) * time.Microsecond)
			n := h.cost(b.capacity)
			d := h.ask(n)
			if d.Allowed != (n <= b.size) {
				t.Fatalf("%+v, cost %d: Weir says %+v", b, n, d)
			}
			if d.Allowed {
				b.size -= n
			}
		}
	})
}
