//go:build e2e

package e2e

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/envoytest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// A queue releases one request each 100 ms: of 20 at once, 8 arrive at the upstream evenly spaced, and 12, for which
// the queue has no room, are denied at once. Until all have come on a busy machine, the queue has room for one more
// each 100 ms. It is the same with memory and with Redis.
func TestQueueShapesTraffic(t *testing.T) {
	for _, store := range []string{"memory", "redis"} {
		t.Run(store, func(t *testing.T) {
			args := []string{"--store", "memory"}
			if store == "redis" {
				args = []string{"--store", redistest.Start(t).URL(), "--store-timeout", "1s"}
			}
			s := startWeir(t, ruleFile(t, `
domain: shop
descriptors:
  - key: remote_address
    rate_limit: {algorithm: leaky_queue, requests_per_unit: 10, unit: second, burst: 7}
`), args...)
			var mu sync.Mutex
			var arrivals []time.Time
			e := proxy{Weir: []string{s.GRPC}, Domain: "shop", Upstream: upstream(t, func(http.ResponseWriter, *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				arrivals = append(arrivals, time.Now())
			})}.start(t)
			start := time.Now()
			all := atOnce(t, newClient(t, "127.0.0.1", e.Listener("front")), 20)
			var denied time.Time // the last one was, by when all had come
			for _, s := range all {
				if end := s.began.Add(s.took); s.status == http.StatusTooManyRequests && end.After(denied) {
					denied = end
				}
			}
			got, passed := tally(all), len(arrivals)
			most := 8 + int(denied.Sub(start)/(100*time.Millisecond))
			if got[200] != passed || got[429] != 20-passed || passed < 8 || passed > most {
				t.Fatalf("statuses %v with %d arrivals at the upstream, want 8 to %d times 200, and else 429", got, passed, most)
			}
			var gaps []time.Duration
			for i := 1; i < len(arrivals); i++ {
				gaps = append(gaps, arrivals[i].Sub(arrivals[i-1]).Round(time.Millisecond))
			}
			t.Logf("gaps between arrivals at the upstream: %v", gaps)
			// The eighth has waited 700 ms, more on a busy machine. The clock of Redis and this one may differ by a bit.
			whole, least := arrivals[passed-1].Sub(start), time.Duration(passed-1)*100*time.Millisecond
			if whole < least-time.Millisecond {
				t.Errorf("%d requests arrived within %s, want %s or more", passed, whole, least)
			}
			slices.Sort(gaps)
			if median := gaps[len(gaps)/2]; median < 50*time.Millisecond || median > 150*time.Millisecond {
				t.Errorf("median gap %s, want about 100ms", median)
			}
		})
	}
}

// atOnce sends n requests over as many connections.
func atOnce(t *testing.T, c *client, n int) []sample {
	t.Helper()
	out := make([]sample, n)
	var wg sync.WaitGroup
	for i := range out {
		wg.Go(func() { out[i] = c.get(t.Context(), "/") })
	}
	wg.Wait()
	return out
}

// Three of a client's requests may be in flight. A request takes a permit when it comes, and returns it when its
// stream is done.
func TestConcurrency(t *testing.T) {
	f := newFlight(t, "1m")
	for range 3 {
		f.begin(t)
	}
	if got := f.client.status(t, "/"); got != 429 {
		t.Fatalf("the fourth request in flight: status %d, want 429", got)
	}
	f.end <- struct{}{}
	if got := <-f.done; got != 200 {
		t.Fatalf("the first that ended: status %d, want 200", got)
	}
	// Envoy reports the end of a stream without waiting for the answer.
	await(t, 30*time.Second, "a free place", func() bool {
		return f.client.get(t.Context(), "/look").header.Get("X-Ratelimit-Remaining") == "1"
	})
	f.begin(t)
	if got := f.client.status(t, "/"); got != 429 {
		t.Errorf("again a fourth in flight: status %d, want 429", got)
	}
	f.endAll(3)
}

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
