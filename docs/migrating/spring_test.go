package migrating

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// spring has the settings of RedisRateLimiter, and its arithmetic in whole seconds.
type spring struct {
	replenishRate, burstCapacity, requestedTokens int64

	used         bool
	tokens, last int64
}

// rule returns the rule that spring-cloud-gateway.md gives for the settings. A request costs requestedTokens.
func (s *spring) rule() limiter.Params {
	return limiter.Params{
		Algorithm: limiter.TokenBucket, Limit: s.replenishRate, Window: time.Second, Burst: s.burstCapacity,
	}
}

// filled returns the number of tokens in that second. The key lives for twice the time that the bucket takes to fill,
// in whole seconds. If that is 0, Redis stores no key.
func (s *spring) filled(second int64) int64 {
	if lives := 2 * s.burstCapacity / s.replenishRate; s.used && second-s.last < lives {
		return min(s.burstCapacity, s.tokens+(second-s.last)*s.replenishRate)
	}
	return s.burstCapacity
}

// take stores what is left in that second.
func (s *spring) take(second, tokens int64) { s.tokens, s.last, s.used = tokens, second, true }

// ask decides a request in that second.
func (s *spring) ask(second int64) (allowed bool, left int64) {
	left = s.filled(second)
	if allowed = left >= s.requestedTokens; allowed {
		left -= s.requestedTokens
	}
	s.take(second, left)
	return allowed, left
}

func drawSpring(t *rapid.T) *spring {
	s := &spring{replenishRate: rapid.Int64Range(1, 30).Draw(t, "replenishRate")}
	s.burstCapacity = rapid.Int64Range((s.replenishRate+1)/2, 100).Draw(t, "burstCapacity")
	s.requestedTokens = rapid.Int64Range(1, s.burstCapacity).Draw(t, "requestedTokens")
	return s
}

// TestSpring: requests that come at whole seconds are answered alike, and as many tokens are left.
func TestSpring(t *testing.T) {
	onPage(t, "spring-cloud-gateway.md", "per-user", (&spring{replenishRate: 10, burstCapacity: 20}).rule())
	rapid.Check(t, func(t *rapid.T) {
		s := drawSpring(t)
		h := newHistory(t, s.rule(), time.Second)
		for range h.requests() {
			h.move(time.Duration(s.burstCapacity/s.replenishRate+1) * time.Second)
			allowed, left := s.ask(h.since(time.Second))
			if d := h.ask(s.requestedTokens); d.Allowed != allowed || d.Remaining != left {
				t.Fatalf("%+v at %d: %t, %d left; Weir says %+v", s, h.since(time.Second), allowed, left, d)
			}
		}
	})
}

// TestSpringBetweenSeconds: of requests that come between whole seconds, which both admit, Spring's bucket has at most
// what a second brings more or fewer tokens than Weir's.
func TestSpringBetweenSeconds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSpring(t)
		s.requestedTokens = 1
		h := newHistory(t, s.rule(), time.Millisecond)
		for range h.requests() {
			h.move(3 * time.Second)
			second := h.since(time.Second)
			filled := s.filled(second)
			between(t, "the difference", filled-h.ask(0).Remaining, -s.replenishRate, s.replenishRate)
			if h.ask(1).Allowed {
				filled--
			}
			s.take(second, filled)
		}
	})
}
