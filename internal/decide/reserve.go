package decide

import (
	"cmp"
	"context"
	"slices"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// maxReserved is the maximum number of a request's limits with a reservation that are charged at the start. Further
// limits peek at the start, and are charged the real cost at the end.
const maxReserved = 16

// role says how a hit takes part in the start or the end of a request with a reservation.
type role uint8

const (
	charges  role = iota // like any other hit
	repeats              // an earlier hit of the request charges the same counter, and decides for both
	corrects             // corrects what the start of the request was charged
	ignored              // belongs to an end that does not concern its limit
)

// reserved describes one hit of a request that has limits with a reservation.
type reserved struct {
	role
	unsent         bool  // the store is not queried for this hit
	first          int   // repeats: index of the earlier hit
	charged, spent int64 // corrects: hits charged at the start, and the real cost in hits; a peek: what a start would be
}

// endsHit reports whether the descriptor reports the end of a request to the limit of hit i. A limit whose reservation
// was removed after the start has none, but the token names its counter.
func (v *Verdict) endsHit(d *Descriptor, i int) (ends bool) {
	if r := v.Limits[i].Reservation; r != nil {
		return d.start != "" || r.EndsByCost && d.Cost > 1
	}
	if d.start != "" && !v.Hits[i].Policy.Algorithm().CountsInFlight() {
		_, _, ends = held(d.start, inTokens(v.Hits[i].Key))
	}
	return ends
}

// setReserved changes the hits of rules with a reservation: a start charges the estimate, and an end the correction.
func (v *Verdict) setReserved() {
	v.reserved = slices.Grow(v.reserved, len(v.Hits))[:len(v.Hits)]
	clear(v.reserved)
	starts := 0
	for of := range v.Statuses {
		d, st, isEnd := &v.Request.Descriptors[of], &v.Statuses[of], false
		for i := st.first; i < st.last; i++ {
			switch r := v.Limits[i].Reservation; {
			case v.endsHit(d, i):
				isEnd = true
				v.setEnd(i, d)
			case r != nil && d.Cost > 0:
				starts += v.setStart(i, d, starts)
			case r != nil && d.Cost == 0:
				v.reserved[i].charged = r.Charge(hinted(d.hint))
			}
		}
		for i := st.first; i < st.last && isEnd; i++ {
			if v.Limits[i].Reservation == nil && !v.isEnd(i) {
				v.ignore(i, d.start)
			}
		}
	}
}

// setStart makes hit i charge what its request is charged at the start. It returns 1 if the end needs an item of the
// token for that; others is the number of such items so far.
func (v *Verdict) setStart(i int, d *Descriptor, others int) (items int) {
	h, r := &v.Hits[i], v.Limits[i].Reservation
	h.N = r.Charge(max(d.Cost, hinted(d.hint)))
	if j := v.earlier(i); j >= 0 {
		v.Hits[j].N = max(v.Hits[j].N, h.N)
		h.N, h.Peek = 0, true
		v.reserved[i] = reserved{role: repeats, first: j, unsent: true}
		return 0
	}
	switch {
	case r.EndsByCost:
		return 0
	case others >= maxReserved:
		h.N, h.Peek = 0, true
		return 0
	}
	return 1
}

// earlier returns the first hit that charges or corrects a reservation on the counter of hit i before hit i, or -1.
func (v *Verdict) earlier(i int) int {
	for j := range i {
		if v.reserved[j].role == v.reserved[i].role && (v.isEnd(i) || v.Hits[j].N > 0) && v.Hits[j].Key == v.Hits[i].Key {
			return j
		}
	}
	return -1
}

// setEnd makes hit i correct what the start of its request was charged to the real cost.
func (v *Verdict) setEnd(i int, d *Descriptor) {
	h, l, e := &v.Hits[i], v.Limits[i], &v.reserved[i]
	h.N, h.Peek, h.Mode = 0, true, limiter.Shadow
	e.role, e.unsent = corrects, true
	if d.Cost < 0 || v.earlier(i) >= 0 {
		e.role = ignored
		return
	}
	v.Request.Ctx = context.WithoutCancel(v.Request.Ctx) // no other call reports the end if this caller leaves
	var gone int64
	if d.start == "" {
		e.charged = l.Reservation.Estimate
	} else if n, at, ok := held(d.start, inTokens(h.Key)); ok {
		e.charged, gone = n, at
	}
	e.spent = min(d.Cost, max(l.Policy.Capacity(), l.Policy.Limit()))
	switch more := e.spent - e.charged; {
	case more > 0:
		h.N, h.Policy = more, cmp.Or(l.Ends, l.Policy)
	case more < 0:
		h.N, h.TakenAt = more, gone
	default:
		return
	}
	h.Peek, e.unsent = false, false
}

// ignore makes hit i, whose limit has no reservation, charge nothing at the end of a request. A request in flight is
// released if the token names it.
func (v *Verdict) ignore(i int, token string) {
	h := &v.Hits[i]
	if h.Policy.Algorithm().CountsInFlight() && release(h, token) {
		return
	}
	h.N, h.Peek, h.TakenAt = 0, true, 0
	v.reserved[i] = reserved{role: ignored, unsent: true}
}

// isEnd reports whether hit i belongs to the end of a request with a reservation.
func (v *Verdict) isEnd(i int) bool { return len(v.reserved) > 0 && v.reserved[i].role >= corrects }

// isUnsent reports whether the store is not queried for hit i, whose decision is known or that of another hit.
func (v *Verdict) isUnsent(i int) bool { return len(v.reserved) > 0 && v.reserved[i].unsent }

// askSome sends only those hits to the store for which send returns true.
func (v *Verdict) askSome(send func(i int) bool) {
	v.asked = part{}
	for i := range v.Hits {
		if send(i) {
			v.asked.add(v.Hits[i], i)
		}
	}
}

// completeReserved sets the decisions of hits that were not sent. An end always passes. A request that only peeks gets
// what its start would get. A peek beside charges, which the store has made, only needs room for one hit.
func (v *Verdict) completeReserved() {
	onlyPeeks := !v.Failed() && !v.anyHit(func(h *limiter.Hit) bool { return h.N != 0 })
	for i := range v.reserved {
		d := &v.Decisions[i]
		switch {
		case v.reserved[i].role == repeats:
			*d = v.Decisions[v.reserved[i].first]
		case v.isEnd(i) && v.isUnsent(i):
			*d = limiter.Decision{Allowed: true, Remaining: v.Hits[i].Policy.Capacity()}
		case v.isEnd(i):
			*d = limiter.Decision{Allowed: true, Remaining: d.Remaining, ResetAfter: d.ResetAfter}
		case onlyPeeks && d.Allowed && d.Remaining < v.reserved[i].charged:
			d.Allowed, d.RetryAfter = false, d.ResetAfter
		}
	}
}
