package decide

import (
	"time"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Verdict is the decision on a Request. It shares the request's memory: the verdict and the request's texts are valid
// until the request is Reset, except the keys of counters, which stay valid.
type Verdict struct {
	Request *Request
	// Asked has the limits of the request: Hits[i] charges Limits[i], and Decisions[i] is the store's decision.
	// Status.Hits returns the range of each descriptor.
	descriptors.Asked

	// Domain has the rules of the request's domain, nil if there are none.
	Domain *descriptors.Domain
	// Statuses has one status per descriptor of the request.
	Statuses []Status
	// Decisions has one decision per hit.
	Decisions []limiter.Decision
	// Denied reports whether the request is denied.
	Denied bool
	// Wait is how long an admitted request is delayed: the longest delay among its limits.
	Wait time.Duration
	// StoreErr is the store's error, after which failure policies decided, or nil.
	StoreErr error

	late        bool       // StoreErr is not a failure of the store: this process was too late to read the response
	quotaDenies bool       // every descriptor in quota mode is over
	refused     bool       // denied because too many requests are delayed: see refuse
	asked       part       // hits sent to the store
	reserved    []reserved // one per hit if a limit has a reservation, else empty
	held        Held       // valid until TakeHeld
}

// Status is the result for one descriptor.
type Status struct {
	// Rule is the rule that the descriptor matched, or nil.
	Rule *descriptors.Rule
	// Limit is the descriptor's tightest limit (see limiter.Tightest), which the status shows; nil if no limit counts.
	Limit *descriptors.Limit
	// Unlimited reports whether the rule is `unlimited`.
	Unlimited bool
	// Over reports whether Limit does not fit, even if the request is admitted. In shadow mode it is false.
	Over bool
	// Remaining is the number of hits of cost 1 that would be admitted now.
	Remaining int64
	// Reset is the time until the limit is fully available again; if Over, until the same request would be admitted. If
	// waiting does not help, Reset is the limit's window or, as in envoyproxy/ratelimit, the rest of a fixed window.
	Reset time.Duration
	// HasReset is false if no counter decided. Reset is then unknown.
	HasReset bool

	first, last int // range of the descriptor's hits; empty if first == last
}

// Hits returns the range of the status's hits in Verdict.Hits; last is exclusive.
func (st *Status) Hits() (first, last int) { return st.first, st.last }

// DynamicMetadata returns Config.DynamicMetadata.
func (v *Verdict) DynamicMetadata() bool { return v.Request.o.DynamicMetadata }

// Failed reports whether the store did not respond, so that each limit's on_store_failure decided.
func (v *Verdict) Failed() bool { return v.StoreErr != nil }

// Counted reports whether a counter decided hit i. Otherwise a failure policy decided without a counter.
func (v *Verdict) Counted(i int) bool {
	return !v.unasked(i) && (v.StoreErr == nil || v.isLocal(i))
}

// isLocal reports whether this process counts limit i itself while the store fails.
func (v *Verdict) isLocal(i int) bool {
	l := v.Limits[i]
	return l.IsLocal() || v.late && l.Local != nil
}

// unasked reports whether the store was not queried for hit i, because the request was refused before, and hit i is not
// the reason, or because the end of a request corrects nothing.
func (v *Verdict) unasked(i int) bool {
	if v.isEnd(i) {
		return v.isUnsent(i)
	}
	return v.refused && v.Hits[i].N >= 0 && !canWait(&v.Hits[i])
}

// Denies reports whether hit i denied the request.
func (v *Verdict) Denies(i int) bool {
	if v.Decisions[i].Allowed {
		return false
	}
	m := v.Hits[i].Mode
	return m == limiter.Enforce || m == limiter.Quota && v.quotaDenies
}

// RetryAfter returns the time after which the client of a denied request may retry: the longest wait among the limits
// that denied it. If waiting does not help, the wait of a limit is its window, so that the client does not retry at
// once. RetryAfter is limiter.Never if a failure policy denied the request, because the end of the outage is unknown.
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

// Response returns the `response` of the first rule that denied the request and has one, else nil.
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
	clear(v.Decisions) // if the store panics, abandon reads them
	v.Reset()
	*v = Verdict{
		Asked: v.Asked, Statuses: v.Statuses[:0], Decisions: v.Decisions[:0], Request: v.Request, reserved: v.reserved[:0],
	}
}
