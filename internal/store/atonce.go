package store

import (
	"context"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

var _ limiter.Later = (*Store)(nil)

// Waits reports whether Take may wait for a Redis.
func (s *Store) Waits() bool { return s.redis != nil }

// TakeAtOnce decides a request without waiting: in memory, by permits on lease, or from cached denials. If it returns
// false, nothing is charged, and out means nothing.
func (s *Store) TakeAtOnce(hits []limiter.Hit, out []limiter.Decision) bool {
	if s.redis == nil {
		return s.Take(context.Background(), hits, out) == nil
	}
	return s.Leases.TakeAtOnce(hits, out) || s.Denials != nil && s.Denials.TakeAtOnce(hits, out)
}

// TakeLater begins what Take does, without a goroutine that waits. It returns false, and has done nothing, if only Take
// can decide the request: hits that may be leased, several servers, a cluster, traces.
func (s *Store) TakeLater(hits []limiter.Hit, out []limiter.Decision, w limiter.Waiter) bool {
	return s.redis != nil && s.Leases.TakeLater(hits, out, w)
}

// Send implements limiter.Later.
func (s *Store) Send() {
	if s.redis != nil {
		s.Leases.Send()
	}
}
