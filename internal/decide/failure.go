package decide

import (
	"context"
	"errors"
	"time"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// applyFailurePolicy decides by each limit's on_store_failure, because the store failed. If this process was late, each
// limit is counted locally.
func (d *Decider) applyFailurePolicy(ctx context.Context, v *Verdict, err error) {
	v.StoreErr, v.late = err, errors.Is(err, limiter.ErrLate)
	hasLocal := false
	for i, l := range v.Limits {
		v.Decisions[i] = openOrClosed(l, v.Hits[i].N)
		hasLocal = hasLocal || v.isLocal(i)
	}
	if hasLocal && d.o.Local != nil {
		d.decideLocally(ctx, v)
	}
}

// openOrClosed is the answer of a limit that fails open or closed. What is given back never counts as not fitting.
func openOrClosed(l *descriptors.Limit, n int64) limiter.Decision {
	if l.OnStoreFailure == descriptors.Deny && n >= 0 {
		return limiter.Decision{RetryAfter: limiter.Never}
	}
	return limiter.Decision{Allowed: true, Remaining: l.Policy.Capacity()}
}

// isUndecided reports whether the store failed a request that no limit denies and whose answer a limit leaves to the
// caller. A limit in shadow mode, and what is given back, never do.
func (v *Verdict) isUndecided() bool {
	for i, l := range v.Limits {
		if l.OnStoreFailure == descriptors.Fail && !v.isLocal(i) && v.Hits[i].Mode != limiter.Shadow && v.Hits[i].N >= 0 {
			return limiter.Admitted(v.Hits, v.Decisions)
		}
	}
	return false
}

// decideLocally asks the limits with a local fallback, and with them those that fail closed: no share is charged for a
// request that these deny. Should Local fail, their requests pass.
func (d *Decider) decideLocally(ctx context.Context, v *Verdict) {
	var hits []limiter.Hit
	var of []int // hits[j] is v.Hits[of[j]]
	for i, l := range v.Limits {
		h := v.Hits[i]
		switch {
		case v.isLocal(i):
			h.Policy = l.Local
		case l.OnStoreFailure == descriptors.Deny:
			h.Policy, h.TakenAt = d.denier, 0
		default:
			continue
		}
		hits, of = append(hits, h), append(of, i)
	}
	out := make([]limiter.Decision, len(hits))
	if err := d.o.Local.Take(ctx, hits, out); err != nil {
		return
	}
	for j, i := range of {
		if v.isLocal(i) {
			v.Decisions[i] = out[j]
		}
	}
}

// newDenier returns a policy that admits nothing.
func newDenier() (*limiter.Policy, error) {
	return limiter.NewPolicy(limiter.Params{Algorithm: limiter.FixedWindow, Window: time.Second})
}
