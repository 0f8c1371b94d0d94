package migrating

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// gubernator has the fields of a RateLimitReq, and its arithmetic, in milliseconds.
type gubernator struct {
	limit, duration, burst int64
	drains                 bool // DRAIN_OVER_LIMIT

	used            bool
	remaining       float64
	expires, leaked int64
}

// tokens is what gubernator.md makes of TOKEN_BUCKET.
func (g *gubernator) tokens() limiter.Params {
	in := limiter.Params{
		Algorithm: limiter.FixedWindow, Limit: g.limit, Window: time.Duration(g.duration) * time.Millisecond,
		Align: limiter.AlignFirstHit, ChargeDenied: limiter.ChargeNone,
	}
	if g.drains {
		in.ChargeDenied = limiter.ChargeRemaining
	}
	return in
}

// leaky is what gubernator.md makes of LEAKY_BUCKET.
func (g *gubernator) leaky() limiter.Params {
	return limiter.Params{
		Algorithm: limiter.Funnel, Limit: g.limit, Window: time.Duration(g.duration) * time.Millisecond, Burst: g.burst,
	}
}

// askTokens decides by TOKEN_BUCKET: all tokens come back when the duration is over that the first request began.
func (g *gubernator) askTokens(now, hits int64) bool {
	if !g.used || g.expires < now {
		g.used, g.expires, g.remaining = true, now+g.duration, float64(g.limit)
	}
	return g.take(hits)
}

// take is what both algorithms do with what is left.
func (g *gubernator) take(hits int64) bool {
	if whole := int64(g.remaining); hits > whole {
		if g.drains && whole > 0 {
			g.remaining = 0
		}
		return false
	} else if hits == whole {
		g.remaining = 0 // also the part of a token that a leaky bucket has
		return true
	}
	g.remaining -= float64(hits)
	return true
}

// askLeaky decides by LEAKY_BUCKET: what leaked counts once it is a whole hit, and a bucket that nobody asked for the
// duration starts again.
func (g *gubernator) askLeaky(now, hits int64) bool {
	if !g.used || g.expires < now {
		g.used, g.leaked, g.remaining = true, now, float64(g.burst)
	}
	g.expires = now + g.duration
	if leak := float64(now-g.leaked) * float64(g.limit) / float64(g.duration); leak >= 1 {
		g.remaining += leak
		g.leaked = now
	}
	if int64(g.remaining) > g.burst {
		g.remaining = float64(g.burst)
	}
	return g.take(hits)
}

func drawGubernator(t *rapid.T) *gubernator {
	return &gubernator{
		limit: rapid.Int64Range(1, 50).Draw(t, "limit"), duration: rapid.Int64Range(10, 60_000).Draw(t, "duration"),
		drains: rapid.Bool().Draw(t, "DRAIN_OVER_LIMIT"),
	}
}

// TestGubernatorTokenBucket: both admit the same requests, but in the millisecond in which a duration ends: there
// Gubernator still counts what came before.
func TestGubernatorTokenBucket(t *testing.T) {
	onPage(t, "gubernator.md", "emails", (&gubernator{limit: 100, duration: 60_000}).tokens())
	rapid.Check(t, func(t *rapid.T) {
		g := drawGubernator(t)
		h := newHistory(t, g.tokens(), time.Millisecond)
		for range h.requests() {
			h.move(time.Duration(g.duration) * time.Millisecond)
			if h.since(time.Millisecond) == g.expires {
				h.now += time.Millisecond.Microseconds()
			}
			n := h.cost(g.limit)
			allowed := g.askTokens(h.since(time.Millisecond), n)
			if d := h.ask(n); d.Allowed != allowed || d.Remaining != int64(g.remaining) {
				t.Fatalf("%+v, hits %d: %t; Weir says %+v", g, n, allowed, d)
			}
		}
	})
}

// TestGubernatorLeakyBucket: with a burst of at most the limit, Gubernator has never admitted more than two requests
// beyond Weir, and Weir may have admitted more: Gubernator forgets a part of a token when the bucket becomes empty.
func TestGubernatorLeakyBucket(t *testing.T) {
	onPage(t, "gubernator.md", "requests", (&gubernator{limit: 10, duration: 1000, burst: 10}).leaky())
	rapid.Check(t, func(t *rapid.T) {
		g := drawGubernator(t)
		g.drains, g.burst = false, rapid.Int64Range(1, g.limit).Draw(t, "burst")
		h := newHistory(t, g.leaky(), time.Millisecond)
		var weir, other int64
		for range h.requests() {
			h.move(time.Duration(g.duration) * time.Millisecond)
			if g.askLeaky(h.since(time.Millisecond), 1) {
				other++
			}
			if h.ask(1).Allowed {
				weir++
			}
			between(t, "what Gubernator has admitted beyond Weir", other-weir, -60, 2)
			between(t, "what Weir has admitted beyond twice that", weir-2*other, -60, g.burst)
		}
	})
}

// TestGubernatorForgetsParts: a client that has used its burst and always comes just before the next token gets half of
// the rate.
func TestGubernatorForgetsParts(t *testing.T) {
	g := &gubernator{limit: 10, duration: 1000, burst: 10}
	p, weir, other := newPolicy(t, g.leaky()), 0, 0
	state, _ := p.Step(limiter.State{}, start, g.burst)
	g.askLeaky(start/1000, g.burst)
	for now := start / 1000; now < start/1000+100_000; now += 99 {
		var d limiter.Decision
		if state, d = p.Step(state, now*1000, 1); d.Allowed {
			weir++
		}
		if g.askLeaky(now, 1) {
			other++
		}
	}
	between(t, "what Weir admits in 100 s", int64(weir), 990, 1000)
	between(t, "what Gubernator admits in 100 s", int64(other), 500, 510)
}
