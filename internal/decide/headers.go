package decide

import (
	"math"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// LimitHeaders has the flags for the names of the limit headers: limit in requests per window, remaining requests, and
// seconds until the limit is fully available again or, for a denied request, until it would be admitted.
type LimitHeaders struct {
	Limit     string `name:"limit-header" env:"LIMIT_HEADER" default:"RateLimit-Limit" help:"Header with the requests per window."`
	Remaining string `name:"remaining-header" env:"REMAINING_HEADER" default:"RateLimit-Remaining" help:"Header with the remaining requests."`
	Reset     string `name:"reset-header" env:"RESET_HEADER" default:"RateLimit-Reset" help:"Header with the seconds until the limit is fully available again; for a denied request, until it would be admitted."`
}

// Header is a response header for the client. Its value is Number if IsNumber is true, else Text.
type Header struct {
	Name, Text string
	Number     int64
	IsNumber   bool
}

// Headers yields the response headers: the limit headers of the nearest limit if they are enabled; for a denied request
// also Retry-After and the headers of its rule's response.
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

// nearest returns the status for the limit headers: as in envoyproxy/ratelimit, the last status over its limit, else
// the first with the fewest remaining hits. It is nil without a limit, without header names, or if the store failed.
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

// CeilSeconds rounds d up to whole seconds, so that a client that waits this long is not denied again.
func CeilSeconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// Saturate returns the number of hits nearest to n that fits a response field.
func Saturate(n int64) uint32 {
	return uint32(min(max(n, 0), math.MaxUint32))
}
