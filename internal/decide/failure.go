package decide

import (
	"context"
	"errors"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// applyFailurePolicy lets each limit's on_store_failure decide, because the store failed. If the store did not fail but
// this process was too late, each limit is counted locally.
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
	v.completeReserved()
}

// openOrClosed returns the decision of a limit that fails open or closed. A refund always fits.
func openOrClosed(l *descriptors.Limit, n int64) limiter.Decision {
	if l.OnStoreFailure == descriptors.Deny && n >= 0 {
		return limiter.Decision{RetryAfter: limiter.Never}
	}
	return limiter.Decision{Allowed: true, Remaining: l.Policy.Capacity()}
}

// isUndecided reports whether a limit leaves the decision to the caller, and all other limits admit the request.
func (v *Verdict) isUndecided() bool {
	for i := range v.Limits {
		if v.isCallers(i) {
			return limiter.Admitted(v.Hits, v.Decisions)
		}
	}
	return false
}

// decideLocally queries Local for the limits with a local fallback. Limits that fail closed or leave the decision to
// the caller are added as hits that never fit, so that no share is charged for a request that they deny or leave
// undecided. If Local fails, the limits with a local fallback admit.
func (d *Decider) decideLocally(ctx context.Context, v *Verdict) {
	var p part
	for i, l := range v.Limits {
		h := v.Hits[i]
		switch {
		case v.isEnd(i), v.isUnsent(i):
			continue
		case v.isLocal(i):
			if h.Policy = l.Local; l.Reservation != nil { // so that an estimate fits a small share
				h.N = min(h.N, max(1, l.Local.Capacity()))
			}
		case l.OnStoreFailure == descriptors.Deny, v.isCallers(i):
			h.Policy, h.TakenAt = d.denier, 0
		default:
			continue
		}
		p.add(h, i)
	}
	if err := d.o.Local.Take(ctx, p.hits, p.out); err != nil {
		return
	}
	v.hold(d.o.Local, p.hits, p.out)
	for j, i := range p.of {
		if v.isLocal(i) {
			v.Decisions[i] = p.out[j]
		}
	}
}

// isCallers reports whether limit i leaves the decision to the caller. Limits in shadow mode and refunds never do.
func (v *Verdict) isCallers(i int) bool {
	h := &v.Hits[i]
	return v.Limits[i].OnStoreFailure == descriptors.Fail && !v.isLocal(i) && h.Mode != limiter.Shadow && h.N >= 0
}
