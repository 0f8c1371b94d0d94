//go:build e2e

package e2e

import (
	"testing"
)

// A denied request gets its rule's headers, among them the type of the body, and the body. An admitted one gets
// neither. Both get the RateLimit headers.
func TestResponseOfARule(t *testing.T) {
	t.Parallel()
	s := startWeir(t, ruleFile(t, `
domain: shop
descriptors:
  - key: remote_address
    cidr: [127.0.0.0/24, '::1']
    rate_limit: {requests_per_unit: 1, unit: year}
    response:
      headers: {Content-Type: application/problem+json, X-Reason: slow down}
      body: '{"title": "too many requests"}'
  - key: remote_address
    rate_limit: {requests_per_unit: 1, unit: year}
`), "--ratelimit-headers", "--ratelimit-reset-header", "X-Again")
	e := proxy{Weir: []string{s.GRPC}, Domain: "shop"}.start(t)
	c := newClient(t, "127.0.0.1", e.Listener("front"))
	ok, denied := c.get(t.Context(), "/"), c.get(t.Context(), "/")
	if ok.status != 200 || denied.status != 429 {
		t.Fatalf("statuses %d and %d, want 200 and 429", ok.status, denied.status)
	}
	if got, want := denied.body, `{"title": "too many requests"}`; got != want {
		t.Errorf("body %q, want %q", got, want)
	}
	for _, tt := range []struct {
		of           sample
		header, want string
	}{
		{ok, "X-Reason", ""},
		{denied, "X-Reason", "slow down"},
		{denied, "Content-Type", "application/problem+json"},
		{ok, "RateLimit-Limit", "1"},
		{ok, "RateLimit-Remaining", "0"},
		{denied, "RateLimit-Limit", "1"},
		{denied, "RateLimit-Remaining", "0"},
		{denied, "X-Again", denied.header.Get("Retry-After")},
		{denied, "RateLimit-Reset", ""},
	} {
		if got := tt.of.header.Values(tt.header); len(got) > 1 || tt.of.header.Get(tt.header) != tt.want {
			t.Errorf("status %d: %s: %q, want %q", tt.of.status, tt.header, got, tt.want)
		}
	}
	other := newClient(t, "127.0.1.1", e.Listener("front")) // outside of the block: another rule
	other.status(t, "/")
	if s := other.get(t.Context(), "/"); s.status != 429 || s.body != "" || s.header.Get("X-Reason") != "" {
		t.Errorf("outside of the block: status %d, body %q, X-Reason %q; want 429 and nothing", s.status, s.body,
			s.header.Get("X-Reason"))
	}
}
