//go:build e2e

package e2e

import (
	"net/http"
	"slices"
	"strconv"
	"testing"
)

// Each client has a funnel of 20 that leaks one request in six minutes: 30 at once are 20 and 10, exactly, and the
// headers count down with them.
func TestFunnelForEachClient(t *testing.T) {
	t.Parallel()
	s := startWeir(t, ruleFile(t, `
domain: shop
descriptors:
  - key: remote_address
    rate_limit: {name: per-client, algorithm: funnel, requests_per_unit: 10, unit: hour, burst: 20}
`))
	e := proxy{Weir: []string{s.GRPC}, Domain: "shop"}.start(t)
	for _, from := range []string{"127.0.0.1", "127.0.0.2"} {
		t.Run(from, func(t *testing.T) {
			samples := newClient(t, from, e.Listener("front")).burst(t.Context(), 30, "/")
			if got := tally(samples); got[200] != 20 || got[429] != 10 {
				t.Fatalf("statuses %v, want 20 times 200 and 10 times 429", got)
			}
			var remaining []int
			for _, s := range samples {
				remaining = append(remaining, checkFunnelHeaders(t, s))
			}
			slices.Sort(remaining)
			for i, got := range remaining {
				if want := max(0, i-10); got != want { // ten denied with 0, then 0, 1, ... 19
					t.Fatalf("remaining, sorted: %v; want %d at %d", remaining, want, i)
				}
			}
		})
	}
	if got := e.Stat("cluster.upstream.ratelimit.over_limit"); got != 20 {
		t.Errorf("Envoy counted %d requests over the limit, want 20", got)
	}
	if got := e.Stat("cluster.upstream.ratelimit.error"); got != 0 {
		t.Errorf("Envoy counted %d failed calls", got)
	}
}

// checkFunnelHeaders compares the X-RateLimit headers with the funnel of TestFunnelForEachClient, and returns what
// is remaining.
func checkFunnelHeaders(t *testing.T, s sample) int {
	t.Helper()
	if got, want := s.header.Get("X-Ratelimit-Limit"), `10, 10;w=3600;name="per-client"`; got != want {
		t.Errorf("X-RateLimit-Limit: %s; want %s", got, want)
	}
	remaining, err := strconv.Atoi(s.header.Get("X-Ratelimit-Remaining"))
	if err != nil {
		t.Error(err)
	}
	// Reset is when the funnel is empty; after a denial, when the next request passes.
	wait := (20 - remaining) * 360
	if s.status == http.StatusTooManyRequests {
		wait = 360
		checkSeconds(t, s, "Retry-After", wait)
	}
	checkSeconds(t, s, "X-Ratelimit-Reset", wait)
	return remaining
}

// checkSeconds compares a header with a number of seconds, of which a few may have gone by.
func checkSeconds(t *testing.T, s sample, header string, want int) {
	t.Helper()
	got, err := strconv.Atoi(s.header.Get(header))
	if err != nil || got > want || got < want-5 {
		t.Errorf("%s: %q after status %d; want %d", header, s.header.Get(header), s.status, want)
	}
}
