package decide

import (
	"context"
	"slices"
	"sync"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/take"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Peek returns what Decide would return now, with the same errors. It charges nothing, delays nothing, and calls no
// Observer or Watcher. Remaining and ResetAfter are those before the hit, Wait is 0, and the RetryAfter of a cost above
// 1 is an upper bound. Peek sees neither permits on lease nor, in later hits of a counter, a refund by the request.
func (d *Decider) Peek(ctx context.Context, rules *descriptors.Set, r *Request) (*Verdict, error) {
	o := d.o
	o.Rules, o.Observer, o.Watchers = func() *descriptors.Set { return rules }, unobserved{}, nil
	o.Unasked = nil // an end that the store did not see is not sent again
	if o.Local != nil {
		o.Local = preview{o.Local}
	}
	previews := &Decider{o: o, chain: take.Of(preview{d.chain}), denier: d.denier, batches: sync.Pool{New: d.batches.New}}
	previews.delayed.most = d.delayed.most - d.delayed.now.Load()
	r.Ctx = ctx
	previews.Decide(r)
	r.Verdict.TakeHeld() // nothing was charged
	return &r.Verdict, r.Err
}

// preview is a limiter.Store that charges nothing: it peeks, and works out which hits would fit.
type preview struct{ limiter.Store }

func (s preview) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	peeks := slices.Clone(hits)
	for i := range peeks {
		peeks[i].N, peeks[i].Peek, peeks[i].TakenAt = 0, true, 0
	}
	if err := s.Store.Take(ctx, peeks, out); err != nil {
		return err
	}
	charged := make(map[string]int64, len(hits)) // what earlier hits would charge to a counter
	for i := range hits {
		charged[hits[i].Key] += apply(&hits[i], &out[i], charged[hits[i].Key])
	}
	return nil
}

// apply changes d from a peek to the decision of hit h after earlier hits charged its counter, and returns h's charge.
func apply(h *limiter.Hit, d *limiter.Decision, charged int64) int64 {
	p, core, charge, found, room := h.Policy, h.Policy.Core(), max(h.N, 0), d.Allowed, d.Remaining-charged
	d.Remaining = max(room, 0)
	if p.Algorithm() == limiter.LeakyQueue {
		// A request passes an idle queue at once, whatever its cost, and then room is left only for requests that wait.
		rate := float64(p.Limit()) / float64(p.Window())
		waiting := rate*float64(p.MaxWait()) + 1e-6 // against rounding
		room = int64(float64(core.Largest)+waiting-rate*float64(d.ResetAfter)) - charged
		charge = max(charge, min(charge, 1)*(room-int64(waiting)))
	}
	fits := room >= max(h.N, 1) || core.PaysLater && room > 0 || core.PeeksAtLimit && h.N == 0 && found
	d.Allowed = h.N < 0 || fits && h.N <= core.Largest
	switch {
	case d.Allowed:
		return charge
	case h.N > core.Largest-charged:
		d.RetryAfter = limiter.Never
	case found || h.N > 1 && !core.PaysLater:
		d.RetryAfter = d.ResetAfter
	}
	if (h.ByItself || h.Mode == limiter.Shadow) && p.Params().ChargeDenied != limiter.ChargeNone {
		return d.Remaining
	}
	return 0
}
