package decide

import (
	"context"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// takesPlace reports whether hit i takes places of a limit on requests in flight.
func (v *Verdict) takesPlace(i int) bool {
	return v.Hits[i].N > 0 && v.Hits[i].Policy.Algorithm().CountsInFlight()
}

// TakesPlaces reports whether the request takes places of limits on requests in flight, once it is admitted. It may be
// called after DecideAtOnce has not decided.
func (r *Request) TakesPlaces() bool {
	for i := range r.verdict.Hits {
		if r.verdict.takesPlace(i) {
			return true
		}
	}
	return false
}

// mayHoldDenied reports whether the request holds places although it is denied: DecideRest gives these back.
func (v *Verdict) mayHoldDenied() bool {
	for i := range v.Hits {
		if v.takesPlace(i) && v.countsByItself(i) {
			return true
		}
	}
	return false
}

// countsByItself reports whether hit i is charged whatever the other limits say.
func (v *Verdict) countsByItself(i int) bool {
	return v.Hits[i].Mode == limiter.Shadow || v.Hits[i].ByItself
}

// GiveBackPlaces gives back the places that a request has taken whose end nobody will report: its caller has gone, or
// it is denied. A denied request has places only of limits that count it by themselves: in shadow mode, and with
// Options.ChargeEach. Nothing else is given back. It asks the store, if there is anything to give back; without an
// answer the places are free at the end of their lease.
func (d *Decider) GiveBackPlaces(ctx context.Context, v *Verdict) error {
	var hits []limiter.Hit
	for i := range v.Hits {
		if !v.takesPlace(i) || !v.Decisions[i].Allowed || !v.Counted(i) {
			continue
		}
		if v.Denied && !v.countsByItself(i) {
			continue
		}
		h := v.Hits[i]
		h.N = -h.N
		if v.StoreErr != nil {
			h.Policy = v.Limits[i].Local
		}
		hits = append(hits, h)
	}
	switch {
	case len(hits) == 0:
		return nil
	case v.StoreErr != nil && d.o.Local == nil:
		return nil
	case v.StoreErr != nil:
		return d.o.Local.Take(ctx, hits, make([]limiter.Decision, len(hits)))
	default:
		return d.o.Store.Take(ctx, hits, make([]limiter.Decision, len(hits)))
	}
}
