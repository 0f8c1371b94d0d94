package decide

import (
	"context"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// takesPlaceByItself reports whether a hit takes places although other limits deny the request.
func takesPlaceByItself(h *limiter.Hit) bool {
	return (h.Mode == limiter.Shadow || h.ByItself) && h.TakesPlaces()
}

// TakesPlaces reports whether the request takes places of limits on requests in flight, once it is admitted. It may be
// called after DecideAtOnce has not decided.
func (r *Request) TakesPlaces() bool { return r.verdict.anyHit((*limiter.Hit).TakesPlaces) }

// GiveBackPlaces gives back the places that an admitted request has taken whose end nobody will report: its caller has
// gone. A denied request has none. It asks the store, if there is anything to give back; without an answer the places
// are free at the end of their lease.
func (d *Decider) GiveBackPlaces(ctx context.Context, v *Verdict) error {
	if v.Denied {
		return nil
	}
	return d.giveBack(ctx, v, (*limiter.Hit).TakesPlaces)
}

// anyHit reports whether one of the request's hits is so.
func (v *Verdict) anyHit(is func(*limiter.Hit) bool) bool {
	for i := range v.Hits {
		if is(&v.Hits[i]) {
			return true
		}
	}
	return false
}

// giveBack gives back the places that the wanted hits have taken.
func (d *Decider) giveBack(ctx context.Context, v *Verdict, wanted func(*limiter.Hit) bool) error {
	var hits []limiter.Hit
	for i := range v.Hits {
		if !wanted(&v.Hits[i]) || !v.Decisions[i].Allowed || !v.Counted(i) {
			continue
		}
		h := v.Hits[i]
		h.N = -h.N
		if v.Failed() {
			h.Policy = v.Limits[i].Local
		}
		hits = append(hits, h)
	}
	store := d.o.Store
	if v.Failed() {
		store = d.o.Local
	}
	if len(hits) == 0 || store == nil {
		return nil
	}
	return store.Take(ctx, hits, make([]limiter.Decision, len(hits)))
}
