package decide

import (
	"math"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// LimitHeaders are the names of response headers: the limit in requests per window, how many remain, and the seconds
// until the limit is fully available again, or for a denied request until it would be admitted. They are flags of
// serve.
type LimitHeaders struct {
	Limit     string `name:"limit-header" env:"LIMIT_HEADER" default:"RateLimit-Limit" help:"Header with the requests per window."`
	Remaining string `name:"remaining-header" env:"REMAINING_HEADER" default:"RateLimit-Remaining" help:"Header with the remaining requests."`
	Reset     string `name:"reset-header" env:"RESET_HEADER" default:"RateLimit-Reset" help:"Header with the seconds until the limit is fully available again; for a denied request, until it would be admitted."`
}

// Header is a field of the response that the request's client gets. Its value is Text, or Number if IsNumber.
type Header struct {
	Name, Text string
	Number     int64
	IsNumber   bool
}

// Headers yields the response's header fields: those of the nearest limit if the process has names for them, then
// Retry-After and those of the rule's response if the request is denied.
func (v *Verdict) Headers(yield func(Header) bool) {
	names := &v.Request.o.LimitHeaders
	if !v.Denied && *names == (LimitHeaders{}) {
		return
	}
	number := func(name string, n int64) bool { return yield(Header{Name: name, Number: n, IsNumber: true}) }
	if st := v.nearest(); st != nil {
		if !number(names.Limit, int64(Saturate(st.Limit.Policy.Limit()))) ||
			!number(names.Remaining, int64(Saturate(st.Remaining))) ||
			!number(names.Reset, CeilSeconds(st.Reset)) {
			return
		}
	}
	if !v.Denied {
		return
	}
	wait := v.RetryAfter()
	if wait != limiter.Never && v.Request.o.RetryAfter && !number("Retry-After", CeilSeconds(wait)) {
		return
	}
	if response := v.Response(); response != nil {
		for _, h := range response.Headers {
			if !yield(Header{Name: h.Name, Text: h.Value}) {
				return
			}
		}
	}
}

// nearest is the status that the limit headers show, as envoyproxy/ratelimit chooses it: the last one that is over its
// limit, else the first that has the least remaining. It is nil if no status has a limit, or if none is to be shown.
func (v *Verdict) nearest() (nearest *Status) {
	if v.Request.o.LimitHeaders == (LimitHeaders{}) || v.Failed() {
		return nil
	}
	for i := range v.Statuses {
		st := &v.Statuses[i]
		if st.Limit == nil {
			continue
		}
		if nearest == nil || st.Over || !nearest.Over && st.Remaining < nearest.Remaining {
			nearest = st
		}
	}
	return nearest
}

// CeilSeconds rounds up to whole seconds: a client that comes back too early is denied again.
func CeilSeconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// Saturate is the nearest number of hits that an answer can carry.
func Saturate(n int64) uint32 {
	return uint32(min(max(n, 0), math.MaxUint32))
}
