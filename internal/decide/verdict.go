package decide

import (
	"time"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Verdict is what was decided of a Request. It lies in the request's memory: a verdict, and the texts of its request,
// are valid until the request is Reset. A counter's key may be kept longer.
type Verdict struct {
	Request *Request
	// Asked has the limits that were asked: Limits[i] by Hits[i], with Decisions[i] as the answer. Status.Hits says which
	// are those of a descriptor.
	descriptors.Asked

	// Domain is the rules of the request's domain, nil if it has none.
	Domain *descriptors.Domain
	// Statuses has one for each of the request's descriptors.
	Statuses []Status
	// Decisions are the store's answers.
	Decisions []limiter.Decision
	// Denied reports whether the request as a whole is.
	Denied bool
	// Wait is how long an admitted request is delayed: until the last of its limits lets it go.
	Wait time.Duration
	// StoreErr is why the store did not answer, so that failure policies decided. Nil: it did.
	StoreErr error

	late        bool // of StoreErr: the store did not fail, this process was too late
	quotaDenies bool // every descriptor in quota mode is over
	refused     bool // denied since no request may be delayed any more: see Decider.refuse
	asked       part // of the store
	held        Held // until TakeHeld
}

// Status is what one descriptor is answered.
type Status struct {
	// Rule is what the descriptor matched, nil if nothing.
	Rule *descriptors.Rule
	// Limit is the descriptor's tightest, which the status shows, as limiter.Tightest has it. Nil: no limit counts.
	Limit *descriptors.Limit
	// Unlimited reports that the rule says so.
	Unlimited bool
	// Over reports that Limit does not fit, whatever becomes of the request. In shadow mode it is false.
	Over bool
	// Remaining is how many hits of cost 1 would pass now.
	Remaining int64
	// Reset is the time until the limit is fully available again; if Over, until the same request would be admitted. Where
	// no wait helps, it is the limit's window; of a fixed window the time to its end, as in envoyproxy/ratelimit.
	Reset time.Duration
	// HasReset is false if no counter decided: Reset is not known then.
	HasReset bool

	first, last int // its hits: none if first == last
}

// Hits are the indexes of the status's hits in Verdict.Hits: from first, before last.
func (st *Status) Hits() (first, last int) { return st.first, st.last }

// DynamicMetadata is Config.DynamicMetadata.
func (v *Verdict) DynamicMetadata() bool { return v.Request.o.DynamicMetadata }

// Failed reports that the store did not answer, and that each limit's on_store_failure decided.
func (v *Verdict) Failed() bool { return v.StoreErr != nil }

// Counted reports whether hit i was decided by a counter, and not by a failure policy alone.
func (v *Verdict) Counted(i int) bool {
	return !v.unasked(i) && (v.StoreErr == nil || v.isLocal(i))
}

// isLocal reports whether limit i is counted in this process while the store does not decide.
func (v *Verdict) isLocal(i int) bool {
	l := v.Limits[i]
	return l.IsLocal() || v.late && l.Local != nil
}

// unasked reports whether the request was denied before the store was asked about hit i, and not for that hit.
func (v *Verdict) unasked(i int) bool { return v.refused && v.Hits[i].N >= 0 && !canWait(&v.Hits[i]) }

// Denies reports whether hit i denied the request.
func (v *Verdict) Denies(i int) bool {
	if v.Decisions[i].Allowed {
		return false
	}
	m := v.Hits[i].Mode
	return m == limiter.Enforce || m == limiter.Quota && v.quotaDenies
}

// RetryAfter is the time after which a client whose request was denied may come back: the longest among the limits that
// denied it. Of a limit that no wait satisfies it is the window, so that the client does not come back at once. It is
// limiter.Never if a failure policy has denied the request, since nobody knows when the store answers again.
func (v *Verdict) RetryAfter() (longest time.Duration) {
	for i := range v.Hits {
		if !v.Denies(i) {
			continue
		}
		wait := v.Decisions[i].RetryAfter
		if wait == limiter.Never && v.Counted(i) {
			wait = v.Hits[i].Policy.Window()
		}
		longest = max(longest, wait)
	}
	return longest
}

// Response is what the client of a denied request is sent: that of the first of the rules that deny it and have one,
// nil if none has.
func (v *Verdict) Response() *descriptors.Response {
	for i := range v.Statuses {
		st := &v.Statuses[i]
		if st.Rule == nil || st.Rule.Response == nil {
			continue
		}
		for j := st.first; j < st.last; j++ {
			if v.Denies(j) {
				return st.Rule.Response
			}
		}
	}
	return nil
}

func (v *Verdict) reset() {
	clear(v.Statuses)
	v.Reset()
	*v = Verdict{Asked: v.Asked, Statuses: v.Statuses[:0], Decisions: v.Decisions[:0], Request: v.Request}
}
