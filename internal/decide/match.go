package decide

import (
	"slices"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Match finds the rules and limits of the request's descriptors, and makes a hit of each limit that counts. A hit has
// the cost of its descriptor or, for a limit with a reservation, charges the estimate or corrects it. Match does not
// query the store. The error is an InvalidError.
func (d *Decider) Match(rules *descriptors.Set, r *Request) (*Verdict, error) {
	v := &r.Verdict
	if v.Request != nil { // the request was decided before
		v.reset()
	}
	v.Request = r
	if err := r.check(); err != nil {
		return nil, err
	}
	v.Statuses = slices.Grow(v.Statuses, len(r.Descriptors))[:len(r.Descriptors)]
	if v.Domain = rules.Domain(r.Domain); v.Domain == nil {
		return v, nil
	}
	for i := range v.Statuses {
		d, st := &r.Descriptors[i], &v.Statuses[i]
		st.Rule = v.Domain.Match(d.Entries)
		var own *descriptors.Limit
		if d.Own.Window != 0 {
			var err error
			if own, err = v.Domain.Override(st.Rule, d.Own.Requests, d.Own.Window); err != nil {
				return nil, invalid("descriptors[%d].limit: %v", i, err)
			}
		}
		v.Add(d.Entries, st.Rule, own)
	}
	if !v.MakeHits(v.Domain, r.o.MaxCounters) {
		return nil, invalid("descriptors: their rules have more than %d limits together; "+
			"give these rules fewer limits, send fewer descriptors, or raise --max-counters", r.o.MaxCounters)
	}
	v.setCosts()
	v.Decisions = slices.Grow(v.Decisions, len(v.Hits))[:len(v.Hits)]
	return v, nil
}

// setCosts sets the cost of each hit, and the range of hits of each status.
func (v *Verdict) setCosts() {
	reserves := false
	for i := range v.Hits {
		h := &v.Hits[i]
		of := max(h.Group, ^h.Group)
		d, st := &v.Request.Descriptors[of], &v.Statuses[of]
		if st.last == 0 {
			st.first = i
		}
		st.last = i + 1
		h.N, h.Peek, h.ByItself = d.Cost, d.Cost == 0, v.Request.o.ChargeEach
		if d.start != "" && h.N < 0 && h.Policy.Algorithm().CountsInFlight() && !release(h, d.start) {
			h.Mode, h.TakenAt = limiter.Enforce, 1 // a time at which no hit was charged
		}
		reserves = reserves || v.Limits[i].Reservation != nil || d.start != "" && !h.Policy.Algorithm().CountsInFlight()
	}
	if reserves {
		v.setReserved()
	}
}
