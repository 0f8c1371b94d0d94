package embedded

import (
	"strconv"
	"strings"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/decide/metadata"
	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// Outcome is the result of a request.
type Outcome uint8

// The outcomes.
const (
	NotLimited Outcome = iota // the request has no descriptors
	OK                        // the request is admitted
	OverLimit                 // the request is denied
	Failed                    // the request could not be decided
)

// Details of responses for Envoy's access log, as Envoy's own filter sets them.
const (
	detailsOverLimit = "request_rate_limited"
	detailsError     = "rate_limiter_error"
)

// Details returns all non-empty values of Answer.Details.
func Details() []string { return []string{detailsOverLimit, detailsError} }

// Answer tells the filter how to handle a request.
type Answer struct {
	Outcome Outcome
	// Status is the status of the filter's own response; if it is 0, Envoy forwards the request.
	Status uint32
	// Headers are added to the response, whether the filter or the upstream sends it.
	Headers []Header
	// Body and Details are set only with a Status.
	Body, Details string
	// Metadata is the request's dynamic metadata, a google.protobuf.Struct on the wire, or empty. Its namespace must be
	// the namespace of Envoy's own filter.
	Metadata []byte
}

// Header is a header of the response. Its name is in lower case.
type Header struct{ Name, Value string }

func (a *Answer) reset() {
	clear(a.Headers)
	*a = Answer{Headers: a.Headers[:0], Metadata: a.Metadata[:0]}
}

func (a *Answer) add(name, value string) { a.Headers = append(a.Headers, Header{name, value}) }

// answer converts a verdict to an Answer as Envoy's ratelimit filter converts the service's response.
func (c *Call) answer(v *decide.Verdict) {
	a, f := &c.Answer, c.filter
	c.held = v.TakeHeld()
	a.Outcome = OK
	for h := range v.Headers {
		if h.IsNumber {
			h.Text = strconv.FormatInt(h.Number, 10)
		}
		a.add(strings.ToLower(h.Name), h.Text)
	}
	if v.Denied {
		a.Outcome, a.Status, a.Details = OverLimit, uint32(f.limitedStatus), detailsOverLimit //nolint:gosec // 400 to 599
		if response := v.Response(); response != nil {
			a.Body = response.Body
		}
		if !f.envoy.GetDisableXEnvoyRatelimitedHeader() {
			a.add("x-envoy-ratelimited", "true")
		}
		a.Headers = append(a.Headers, f.deniedHeaders...)
	}
	c.addXRateLimit(v)
	a.Metadata = metadata.Append(a.Metadata, v, c)
}

// addXRateLimit adds the headers of draft version 03 as Envoy's filter does from the service's statuses.
func (c *Call) addXRateLimit(v *decide.Verdict) {
	least := -1
	for i := range v.Statuses {
		st := &v.Statuses[i]
		if counted(st) && (least < 0 || decide.Saturate(st.Remaining) < decide.Saturate(v.Statuses[least].Remaining)) {
			least = i
		}
	}
	if least < 0 || !c.showsXRateLimit(least) {
		return
	}
	st := &v.Statuses[least]
	limits := strconv.AppendUint(nil, uint64(decide.Saturate(st.Limit.Policy.Limit())), 10)
	for i := range v.Statuses {
		if counted(&v.Statuses[i]) && c.showsXRateLimit(i) {
			limits = appendPolicy(limits, v.Statuses[i].Limit)
		}
	}
	c.Answer.add("x-ratelimit-limit", string(limits))
	c.Answer.add("x-ratelimit-remaining", strconv.FormatUint(uint64(decide.Saturate(st.Remaining)), 10))
	c.Answer.add("x-ratelimit-reset", strconv.FormatInt(decide.CeilSeconds(st.Reset), 10))
}

// counted reports whether a counter has decided the status. The service then sets current_limit.
func counted(st *decide.Status) bool { return st.Limit != nil && st.HasReset }

// showsXRateLimit reports whether descriptor i appears in the headers. Its rate_limits entry decides, else the filter.
func (c *Call) showsXRateLimit(i int) bool {
	switch c.descriptors[i].XRateLimitHeaders {
	case routev3.RateLimit_OFF:
		return false
	case routev3.RateLimit_DRAFT_VERSION_03:
		return true
	default:
		return c.filter.envoy.GetEnableXRatelimitHeaders() == ratelimitv3.RateLimit_DRAFT_VERSION_03
	}
}

// appendPolicy appends a limit in the form of draft version 03: `, 10;w=60;name="per-ip"`. It omits a limit whose
// window is not a multiple of a unit.
func appendPolicy(dst []byte, l *descriptors.Limit) []byte {
	window := int64(l.Unit.Duration()/time.Second) * int64(max(1, l.UnitMultiplier))
	if window == 0 {
		return dst
	}
	dst = strconv.AppendUint(append(dst, ", "...), uint64(decide.Saturate(l.Policy.Limit())), 10)
	dst = strconv.AppendInt(append(dst, ";w="...), window, 10)
	if l.Name != "" {
		dst = append(append(append(dst, `;name="`...), l.Name...), '"')
	}
	return dst
}
