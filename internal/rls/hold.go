package rls

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// holder bounds the answers that are held back at once.
type holder struct {
	most    int64
	held    atomic.Int64
	refused atomic.Uint64
}

// reserve takes a place, unless all are taken.
func (h *holder) reserve() bool {
	if h.held.Add(1) > h.most {
		h.held.Add(-1)
		h.refused.Add(1)
		return false
	}
	return true
}

func (h *holder) free() { h.held.Add(-1) }

// HeldStats is about the answers that are held back.
type HeldStats struct {
	// Now is how many requests have a place to be held in: their limits may make them wait.
	Now int64
	// Refused is how many requests were denied since all places were taken.
	Refused uint64
}

// Held tells of the answers that leaky_queue and max_wait hold back.
func (s *Service) Held() HeldStats {
	return HeldStats{Now: s.holder.held.Load(), Refused: s.holder.refused.Load()}
}

// wait returns after d, or with ctx's error when the caller has gone. A place in a queue is not given back then:
// those behind it have been told their time.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// mayWait says whether a limit of the request can hold its answer back: only a hit that is charged can, so that a
// request that gives back or looks never needs a place.
func (sc *scratch) mayWait() bool {
	for i := range sc.hits {
		if canWait(&sc.hits[i]) {
			return true
		}
	}
	return false
}

func canWait(h *limiter.Hit) bool {
	return h.N > 0 && h.Mode != limiter.Shadow && h.Policy.MaxWait() > 0
}

// wait is how long the answer of the request is held back: until the last of its limits lets it go. Nothing of
// a denied request waits.
func (sc *scratch) wait() (longest time.Duration) {
	if sc.over {
		return 0
	}
	for i := range sc.out {
		if sc.hits[i].Mode != limiter.Shadow {
			longest = max(longest, sc.out[i].Wait)
		}
	}
	return longest
}

// refuse denies a request that might have to wait where no place is left to wait in. The store is asked for nothing but
// what the request gives back: that has ended, whatever becomes of the rest. The error is that of a caller who has gone.
func (s *Service) refuse(ctx context.Context, sc *scratch) error {
	var gives []limiter.Hit
	for i := range sc.hits {
		h := &sc.hits[i]
		sc.out[i] = limiter.Decision{Allowed: true}
		switch {
		case h.N < 0:
			gives = append(gives, *h)
		case canWait(h):
			sc.out[i] = limiter.Decision{RetryAfter: h.Policy.MaxWait()}
		}
	}
	if len(gives) == 0 {
		return nil
	}
	out := make([]limiter.Decision, len(gives))
	if err := s.o.Store.Take(ctx, gives, out); err != nil {
		if gone := ctx.Err(); gone != nil {
			return status.FromContextError(gone).Err()
		}
		s.o.Observer.StoreFailed(err)
		return nil
	}
	for i, j := 0, 0; j < len(gives); i++ {
		if sc.hits[i].N < 0 {
			sc.out[i] = out[j]
			j++
		}
	}
	return nil
}
