package rls

import (
	"context"
	"fmt"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

const responseRules = `
domain: shop
descriptors:
  - key: a
    rate_limit: {name: a, unit: minute, requests_per_unit: 1}
    response: {headers: {X-Rule: a, X-Empty: ''}, body: from a}
  - key: b
    rate_limit: {name: b, unit: hour, requests_per_unit: 1}
    response: {headers: {X-Rule: b}}
  - {key: plain, rate_limit: {name: plain, unit: hour, requests_per_unit: 5}}
  - {key: zero, rate_limit: {name: zero, unit: hour, requests_per_unit: 0}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}, response: {body: from shadow}}
  - {key: quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}, response: {body: from quota}}
  - {key: room, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 9}}
  - {key: known, response: {body: from known}}
`

// told is what the response tells the client itself.
func told(res *pb.RateLimitResponse) string {
	var text strings.Builder
	for _, h := range res.GetResponseHeadersToAdd() {
		fmt.Fprintf(&text, "%s: %s; ", h.GetKey(), h.GetValue())
	}
	return text.String() + string(res.GetRawBody())
}

func TestResponseOfTheRuleThatDenies(t *testing.T) {
	for name, tt := range map[string]struct {
		ask  []string
		want string
	}{
		"passes":                      {[]string{"a=1"}, ""},
		"denied":                      {[]string{"a=0"}, "Retry-After: 60; X-Rule: a; X-Empty: ; from a"},
		"the first that denies":       {[]string{"a=1", "b=0", "a=0"}, "Retry-After: 3600; X-Rule: b; "},
		"the first that has one":      {[]string{"zero=1", "b=0", "a=0"}, "X-Rule: b; "},
		"none has one":                {[]string{"a=1", "zero=1"}, ""},
		"shadow denies nothing":       {[]string{"shadow=1"}, ""},
		"shadow beside what denies":   {[]string{"shadow=1", "a=0"}, "Retry-After: 60; X-Rule: a; X-Empty: ; from a"},
		"a quota that denies":         {[]string{"quota=1"}, "from quota"},
		"a quota with another's room": {[]string{"quota=1", "room=1"}, ""},
		"a rule without a limit":      {[]string{"known=1"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := service(t, responseRules)
			ask(t, s, request(descriptor("a=0"))) // used up
			ask(t, s, request(descriptor("b=0")))
			req := request()
			for _, d := range tt.ask {
				req.Descriptors = append(req.Descriptors, descriptor(d))
			}
			if got := told(ask(t, s, req)); got != tt.want {
				t.Errorf("told %q, want %q", got, tt.want)
			}
		})
	}
}

// As envoyproxy/ratelimit: what is over last, else what has the least left first.
func TestLimitHeaders(t *testing.T) {
	s, _ := service(
		t,
		responseRules,
		func(o *options) { o.LimitHeaders = decide.LimitHeaders{Limit: "L", Remaining: "R", Reset: "T"} },
	)
	for _, tt := range []struct {
		ask  []string
		want string
	}{
		{[]string{"nobody=1"}, ""},
		{[]string{"plain=1"}, "L: 5; R: 4; T: 3600; "},
		{[]string{"plain=1", "room=1"}, "L: 5; R: 3; T: 3600; "},
		{[]string{"plain=1", "a=1"}, "L: 1; R: 0; T: 60; "},
		{[]string{"a=2", "b=2"}, "L: 1; R: 0; T: 60; "}, // as little left: the first
		{[]string{"a=1", "b=2", "plain=1"}, "L: 1; R: 0; T: 3600; Retry-After: 3600; X-Rule: a; X-Empty: ; from a"},
	} {
		req := request()
		for _, d := range tt.ask {
			req.Descriptors = append(req.Descriptors, descriptor(d))
		}
		got := told(ask(t, s, req))
		if got != tt.want {
			t.Errorf("%v: told %q, want %q", tt.ask, got, tt.want)
		}
	}
}

func TestNoLimitHeadersWhileTheStoreFails(t *testing.T) {
	s, _ := service(t, responseRules, func(o *options) {
		o.LimitHeaders, o.Store = decide.LimitHeaders{Limit: "L", Remaining: "R", Reset: "T"}, storeFunc(
			func(context.Context, []limiter.Hit, []limiter.Decision) error { return limiter.ErrUnavailable })
	})
	if got := told(ask(t, s, request(descriptor("a=1")))); got != "" {
		t.Errorf("told %q, want nothing", got)
	}
}
