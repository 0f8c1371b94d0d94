package decide

import (
	"context"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Peek returns the verdict that the request would get now. It charges nothing, delays nothing, and calls no Observer or
// Watcher. If a limit does not fit a cost above 1, its RetryAfter is an upper bound. The error is an InvalidError.
func (d *Decider) Peek(ctx context.Context, rules *descriptors.Set, r *Request) (*Verdict, error) {
	v, err := d.Match(rules, r)
	if err != nil {
		return nil, err
	}
	costs := make([]int64, len(v.Hits))
	for i := range v.Hits {
		h := &v.Hits[i]
		if !v.isEnd(i) {
			costs[i] = h.N
		}
		h.N, h.Peek, h.TakenAt = 0, true, 0
	}
	if len(v.Hits) > 0 {
		if err := d.chain.Take(ctx, v.Hits, v.Decisions); err != nil {
			d.applyFailurePolicy(ctx, v, err)
		} else {
			v.applyCosts(costs)
			v.completeReserved()
		}
	}
	v.fold()
	return v, nil
}

// applyCosts adjusts the decisions, which say whether one more hit would pass, to the costs of the hits.
func (v *Verdict) applyCosts(costs []int64) {
	for i, cost := range costs {
		p, d := v.Hits[i].Policy, &v.Decisions[i]
		switch {
		case cost > p.Core().Largest:
			d.Allowed, d.RetryAfter = false, limiter.Never
		case (cost > 1 || p.Core().PeeksAtLimit && cost > 0) && d.Remaining < cost && !p.Core().PaysLater:
			d.Allowed, d.RetryAfter = false, d.ResetAfter
		}
	}
}
