//go:build e2e

package e2e

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// Requests in flight of a killed Envoy are never released: their leases expire.
func TestConcurrencyOfAKilledEnvoy(t *testing.T) {
	t.Parallel()
	f := newFlight(t, "3s")
	f.begin(t, "/", 3)
	began := time.Now()
	f.envoy.Kill()
	f.endAll("/", 3)
	other := f.proxy.start(t)
	client := newClient(t, "127.0.0.1", other.Listener("front"))
	if got := client.remaining(t); got != "0" && time.Since(began) < 2*time.Second {
		t.Errorf("%s places are free just after the Envoy was killed, want 0", got)
	}
	proctest.Eventually(t, "all places free", func() bool { return client.remaining(t) == "3" })
	t.Logf("free %s after the requests began, with leases of 3s", time.Since(began).Round(10*time.Millisecond))
}

// A request that counts no more, since its lease has ended or its counter was reset, frees no place that others hold
// when it ends. The others free their own.
func TestEndsFreeTheirOwnPlaces(t *testing.T) {
	t.Parallel()
	f := newFlight(t, "1h")
	f.begin(t, "/", 3)
	if out, err := proctest.RunWeir(t, "reset", "--server", f.weir.Socket(), "--domain", "shop", "remote_address=127.0.0.1"); err != nil {
		t.Fatalf("weir reset: %v\n%s", err, out)
	}
	f.begin(t, "/later", 3)
	asked := func() float64 { return f.weir.Metric(`weir_requests_total{code="ok",domain="shop"}`) }
	for _, tt := range []struct{ path, remaining string }{{"/", "0"}, {"/later", "3"}} {
		before := asked()
		f.endAll(tt.path, 3)
		proctest.Eventually(t, "reported to have ended", func() bool { return asked() == before+3 })
		if got := f.client.remaining(t); got != tt.remaining {
			t.Errorf("after the end of 3 requests of %s: %s places are free, want %s", tt.path, got, tt.remaining)
		}
	}
}

// flight is a client whose requests stay in flight until the test ends them.
type flight struct {
	client *client
	envoy  *proctest.Envoy
	proxy  proxy
	weir   *weir
	began  chan struct{}            // an entry for each request that reached the upstream
	end    map[string]chan struct{} // by path
	done   chan int                 // statuses
}

// newFlight bounds a client to 3 requests in flight, with leases as given.
func newFlight(t *testing.T, lease string) *flight {
	t.Helper()
	stop := make(chan struct{})
	f := &flight{
		began: make(chan struct{}, 10), done: make(chan int, 10),
		end: map[string]chan struct{}{"/": make(chan struct{}, 10), "/later": make(chan struct{}, 10)},
	}
	f.weir = startWeir(t, ruleFile(t, `
domain: shop
descriptors:
  - key: remote_address
    rate_limit: {algorithm: concurrency, requests_per_unit: 3, lease: `+lease+`}
`))
	f.proxy = proxy{
		Weir: []string{f.weir.GRPC}, Domain: "shop",
		PerFilter: "[{actions: [{remote_address: {}}]}, {actions: [{remote_address: {}}, {metadata: " +
			"{descriptor_key: weir_start, source: DYNAMIC, metadata_key: " +
			"{key: envoy.filters.http.ratelimit, path: [{key: weir_start}]}}}], apply_on_stream_done: true, " +
			"hits_addend: {format: '%DYNAMIC_METADATA(envoy.filters.http.ratelimit:leased)%', " +
			"is_negative_hits: true}}]",
		Look: "[{actions: [{remote_address: {}}], hits_addend: {number: 0}}]",
		Upstream: upstream(t, func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/look" {
				return
			}
			f.began <- struct{}{}
			select {
			case <-f.end[r.URL.Path]:
			case <-stop:
			}
		}),
	}
	t.Cleanup(func() { close(stop) }) // before the upstream is closed, which waits for its requests
	f.envoy = f.proxy.start(t)
	f.client = newClient(t, "127.0.0.1", f.envoy.Listener("front"))
	return f
}

// begin sends n requests, one after the other, and returns when they are in flight.
func (f *flight) begin(t *testing.T, path string, n int) {
	t.Helper()
	for range n {
		go func() { f.done <- f.client.get(context.Background(), path).status }()
		select {
		case <-f.began:
		case status := <-f.done:
			t.Fatalf("a request that should be in flight was answered with %d", status)
		}
	}
}

// remaining returns the number of free slots.
func (c *client) remaining(t *testing.T) string {
	t.Helper()
	return c.get(t.Context(), "/look").header.Get("X-Ratelimit-Remaining")
}

func (f *flight) endAll(path string, n int) {
	for range n {
		f.end[path] <- struct{}{}
	}
	for range n {
		<-f.done
	}
}
