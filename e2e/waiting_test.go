//go:build e2e

package e2e

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/envoytest"
)

// Requests whose Envoy is killed are never given back: their leases end.
func TestConcurrencyOfAKilledEnvoy(t *testing.T) {
	t.Parallel()
	f := newFlight(t, "3s")
	for range 3 {
		f.begin(t)
	}
	began := time.Now()
	f.envoy.Kill()
	f.endAll(3)
	other := f.proxy.start(t)
	client := newClient(t, "127.0.0.1", other.Listener("front"))
	if got := client.get(t.Context(), "/look").header.Get("X-Ratelimit-Remaining"); got != "0" &&
		time.Since(began) < 2*time.Second {
		t.Errorf("%s places are free just after the Envoy was killed, want 0", got)
	}
	await(t, 30*time.Second, "all places free", func() bool {
		return client.get(t.Context(), "/look").header.Get("X-Ratelimit-Remaining") == "3"
	})
	t.Logf("free %s after the requests began, with leases of 3s", time.Since(began).Round(10*time.Millisecond))
}

// flight is a client whose requests stay in flight until the test ends them.
type flight struct {
	client *client
	envoy  *envoytest.Envoy
	proxy  proxy
	began  chan struct{} // an entry for each request that reached the upstream
	end    chan struct{}
	done   chan int // statuses
}

// newFlight bounds a client to 3 requests in flight, with leases as given.
func newFlight(t *testing.T, lease string) *flight {
	t.Helper()
	stop := make(chan struct{})
	f := &flight{began: make(chan struct{}, 10), end: make(chan struct{}, 10), done: make(chan int, 10)}
	s := startWeir(t, ruleFile(t, `
domain: shop
descriptors:
  - key: remote_address
    rate_limit: {algorithm: concurrency, requests_per_unit: 3, lease: `+lease+`}
`))
	f.proxy = proxy{
		Weir: []string{s.GRPC}, Domain: "shop",
		PerFilter: "[{actions: [{remote_address: {}}]}, " +
			"{actions: [{remote_address: {}}], apply_on_stream_done: true, " +
			"hits_addend: {format: '%DYNAMIC_METADATA(envoy.filters.http.ratelimit:leased)%', " +
			"is_negative_hits: true}}]",
		Look: "[{actions: [{remote_address: {}}], hits_addend: {number: 0}}]",
		Upstream: upstream(t, func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/look" {
				return
			}
			f.began <- struct{}{}
			select {
			case <-f.end:
			case <-stop:
			}
		}),
	}
	t.Cleanup(func() { close(stop) }) // before the upstream is closed, which waits for its requests
	f.envoy = f.proxy.start(t)
	f.client = newClient(t, "127.0.0.1", f.envoy.Listener("front"))
	return f
}

// begin sends a request and returns when it is in flight.
func (f *flight) begin(t *testing.T) {
	t.Helper()
	go func() { f.done <- f.client.get(context.Background(), "/").status }()
	select {
	case <-f.began:
	case status := <-f.done:
		t.Fatalf("a request that should be in flight was answered with %d", status)
	}
}

func (f *flight) endAll(n int) {
	for range n {
		f.end <- struct{}{}
	}
	for range n {
		<-f.done
	}
}
