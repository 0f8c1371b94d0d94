package rls

import (
	"context"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// standIn decides while the store fails, by each limit's on_store_failure.
func (s *Service) standIn(ctx context.Context, sc *scratch) {
	asksLocal := false
	for i, l := range sc.limits {
		sc.out[i] = unknown(l, sc.hits[i].N)
		asksLocal = asksLocal || l.Local != nil
	}
	if asksLocal && s.o.Local != nil {
		s.decideLocally(ctx, sc)
	}
}

// unknown stands for the answer of a store that failed. What is given back never counts as not fitting.
func unknown(l *descriptors.Limit, n int64) limiter.Decision {
	if l.OnStoreFailure == descriptors.Deny && n >= 0 {
		return limiter.Decision{RetryAfter: limiter.Never}
	}
	return limiter.Decision{Allowed: true, Remaining: l.Policy.Capacity()}
}

// decideLocally asks the limits that this process counts its share of, and with them those that let nothing pass: what
// they deny is charged to none. Should Local fail, their requests pass.
func (s *Service) decideLocally(ctx context.Context, sc *scratch) {
	var hits []limiter.Hit
	var of []int // hits[j] is sc.hits[of[j]]
	for i, l := range sc.limits {
		h := sc.hits[i]
		switch l.OnStoreFailure {
		case descriptors.Local:
			h.Policy = l.Local
		case descriptors.Deny:
			h.Policy = s.none
		default:
			continue
		}
		hits, of = append(hits, h), append(of, i)
	}
	out := make([]limiter.Decision, len(hits))
	if err := s.o.Local.Take(ctx, hits, out); err != nil {
		return
	}
	for j, i := range of {
		if sc.limits[i].OnStoreFailure == descriptors.Local {
			sc.out[i] = out[j]
		}
	}
}

// known says whether hit i was decided by a counter.
func (sc *scratch) known(i int, failed bool) bool { return !failed || sc.limits[i].Local != nil }
