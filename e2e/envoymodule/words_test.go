//go:build e2e

package envoymodule

import (
	"net/http"
	"strings"
	"testing"
)

// The further words of Envoy's own filter: which requests are limited, what denied ones get, how counters are named.
func TestWordsOfTheFilter(t *testing.T) {
	e := start(t, listener("front", []string{moduleFilter(config([]string{rules(t, shop)}, byKey,
		`"request_type": "external"`, `"stat_prefix": "front"`, `"stage": 0`, `"rate_limited_as_resource_exhausted": true`,
		`"response_headers_to_add": [{"header": {"key": "X-Why", "value": "limit"}}]`))}, toUpstream))
	c := newClient(t, e, "front")
	r := c.Get(t, "/", "x-key", "teapot")
	if r.Status != http.StatusTooManyRequests || r.Header.Get("X-Why") != "limit" {
		t.Errorf("a denied request: %+v", r)
	}
	if r := c.Get(t, "/", "x-key", "ann"); r.Status != http.StatusOK || r.Header.Get("X-Why") != "" {
		t.Errorf("an admitted request: %+v", r)
	}
	if got := e.Stat("dynamicmodulescustom.front.over_limit"); got != 1 {
		t.Errorf("Envoy counts %d denied requests, want 1", got)
	}
	r = c.Get(t, "/", "x-key", "teapot", "content-type", "application/grpc")
	if got := strings.Join(r.Header.Values("Grpc-Status"), "|"); r.Status != http.StatusOK || got != "8" {
		t.Errorf("a denied gRPC request: status %q, %+v", got, r)
	}
}

// Envoy says that a request is internal when it comes from an internal address, and only such a client may say so.
func TestRequestType(t *testing.T) {
	for kind, want := range map[string]int{"internal": http.StatusTooManyRequests, "external": http.StatusOK, "both": http.StatusTooManyRequests} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			l := strings.Replace(listener("front", []string{moduleFilter(config([]string{rules(t, shop)}, byKey,
				`"request_type": "`+kind+`"`))}, toUpstream), "use_remote_address: true",
				`use_remote_address: true, internal_address_config: {cidr_ranges: [{address_prefix: 127.0.0.0, prefix_len: 8}]}`, 1)
			c := newClient(t, start(t, l), "front")
			if r := c.Get(t, "/", "x-key", "teapot"); r.Status != want {
				t.Errorf("an internal request: status %d, want %d", r.Status, want)
			}
		})
	}
}
