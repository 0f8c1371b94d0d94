//go:build e2e

package envoymodule

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// costs is a rule whose funnel leaks so slowly that no test sees it.
const costs = `
domain: shop
descriptors:
  - key: key
    rate_limit: {algorithm: funnel, requests_per_unit: 1, unit: hour, burst: 10, charge_denied: full}
`

// inFlight admits two requests of a key at once.
const inFlight = `
domain: shop
descriptors:
  - key: key
    rate_limit: {algorithm: concurrency, requests_per_unit: 2, lease: 10m}
`

const leased = `%DYNAMIC_METADATA(envoy.filters.http.ratelimit:leased)%`

// byKeyAnd is byKey with a hits_addend, and a second entry for the end of the stream.
func byKeyAnd(first, done string) string {
	const actions = `{"actions": [{"request_headers": {"header_name": "x-key", "descriptor_key": "key"}}]`
	return `[` + actions + first + `}, ` + actions + `, "apply_on_stream_done": true, "hits_addend": ` + done + `}]`
}

// startBefore runs an Envoy with two workers and the module before an upstream.
func startBefore(t *testing.T, upstream string, listeners ...string) *proctest.Envoy {
	t.Helper()
	return proctest.StartEnvoyWith(t, bootstrap(listeners, []string{cluster("upstream", upstream)}),
		proctest.EnvoyOptions{Workers: 2, Modules: moduleFolder(t)})
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for until := time.Now().Add(patience); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("not so after %s: %s", patience, what)
		}
	}
}

// look is a route that asks how much remains of a key, and costs nothing.
const look = `{match: {prefix: /look}, route: {cluster: upstream}, typed_per_filter_config: `

func lookRoute() string {
	return look + moduleRoute(`{"rate_limits": [{"actions": [{"request_headers": {"header_name": "x-key",
		"descriptor_key": "key"}}], "hits_addend": {"number": 0}}]}`) + `}, `
}

// A cost in the upstream's body is charged when the stream is done. TestEndsAsInTheService has costs in headers, and
// estimates that are refunded.
func TestCostsAtTheEndOfTheStream(t *testing.T) {
	up := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"usage": {"total_tokens": 4}}`))
	})
	limits := byKeyAnd(`, "hits_addend": {"number": 0}`, `{"format": "%DYNAMIC_METADATA(llm:total_tokens)%"}`)
	e := startBefore(t, up, listener("front", []string{moduleFilter(config([]string{rules(t, costs)}, limits,
		withHeaders)), tokens}, lookRoute()+toUpstream))
	c := newClient(t, e, "front")
	for i, want := range []string{"6", "2", "0"} {
		if r := c.Get(t, "/", "x-key", "ann"); r.Status != http.StatusOK {
			t.Fatalf("request %d: status %d", i, r.Status)
		}
		eventually(t, want+" remaining", func() bool {
			return c.Get(t, "/look", "x-key", "ann").Header.Get("X-Ratelimit-Remaining") == want
		})
	}
}

// denyLater is a filter behind Weir's that answers the request itself.
const denyLater = `{name: envoy.filters.http.fault, typed_config: {
  "@type": type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault,
  abort: {header_abort: {}, percentage: {numerator: 100}}}}`

// hold is an upstream that answers when the test lets it, one request at a time.
type hold struct {
	addr    string
	arrived chan struct{}
	release chan struct{}
}

func newHold(t *testing.T) *hold {
	t.Helper()
	h := &hold{arrived: make(chan struct{}, 100), release: make(chan struct{})}
	h.addr = serve(t, func(_ http.ResponseWriter, r *http.Request) {
		h.arrived <- struct{}{}
		select {
		case <-h.release:
		case <-r.Context().Done():
		}
	})
	return h
}

// await waits until a request has come.
func (h *hold) await(t *testing.T) {
	t.Helper()
	select {
	case <-h.arrived:
	case <-time.After(patience):
		t.Fatal("no request has come")
	}
}

// A request whose counter was forgotten frees no place of others when its stream ends. The others free their own.
func TestEndsFreeTheirOwnPlaces(t *testing.T) {
	server, admin, up := redistest.Start(t), proctest.FreeAddr(t), newHold(t)
	actions := `{"actions": [{"request_headers": {"header_name": "x-key", "descriptor_key": "key"}}`
	limits := `[` + actions + `]}, ` + actions + `, {"metadata": {"descriptor_key": "weir_start", "source": "DYNAMIC",
		"metadata_key": {"key": "envoy.filters.http.ratelimit", "path": [{"key": "weir_start"}]}}}],
		"apply_on_stream_done": true, "hits_addend": {"format": "` + leased + `", "is_negative_hits": true}}]`
	flags := []string{rules(t, inFlight), "--store=" + server.URL(), "--store-timeout=5s", "--http-addr=" + admin}
	filter := moduleFilter(config(flags, limits, withHeaders))
	e := startBefore(t, up.addr, listener("front", []string{filter, denyLater}, toUpstream))
	c := newClient(t, e, "front")
	begin := func() (end func()) {
		ctx, cancel := context.WithCancel(t.Context())
		for range 2 {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Key", "ann")
			go func() {
				if resp, err := c.HTTP.Do(req); err == nil {
					_ = resp.Body.Close()
				}
			}()
			up.await(t)
		}
		return cancel
	}
	end := begin()
	redistest.Do(t, server, "flushall")
	endLater := begin()
	asked := func() float64 { return metric(t, admin, `weir_requests_total{code="ok",domain="shop"}`) }
	before := asked()
	end()
	eventually(t, "two streams have ended", func() bool { return asked() == before+2 })
	if r := c.Get(t, "/", "x-key", "ann"); r.Status != http.StatusTooManyRequests {
		t.Errorf("a third request beside two in flight: status %d", r.Status)
	}
	endLater()
	eventually(t, "two places are free", func() bool {
		r := c.Get(t, "/", "x-key", "ann", "x-envoy-fault-abort-request", "418")
		return r.Header.Get("X-Ratelimit-Remaining") == "1"
	})
}

// Streams that end while Redis is asked hold nothing once it has answered.
func TestInFlightThatEndsBeforeTheAnswer(t *testing.T) {
	server := redistest.Start(t)
	up := serve(t, func(http.ResponseWriter, *http.Request) {})
	// The end of a stream releases nothing, so that a lost slot stays lost.
	filter := moduleFilter(config([]string{rules(t, inFlight), "--store=" + server.URL(), "--store-timeout=10s"}, byKey,
		`"enable_x_ratelimit_headers": "DRAFT_VERSION_03"`))
	e := startBefore(t, up, listener("front", []string{filter}, lookRoute()+toUpstream))
	c := newClient(t, e, "front")
	remaining := func() string { return c.Get(t, "/look", "x-key", "ann").Header.Get("X-Ratelimit-Remaining") }
	if got := remaining(); got != "2" {
		t.Fatalf("%s places at first", got)
	}
	server.Pause()
	var wait sync.WaitGroup
	for range 2 {
		wait.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL, http.NoBody)
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("X-Key", "ann")
			if resp, err := c.HTTP.Do(req); err == nil {
				_ = resp.Body.Close()
				t.Errorf("Redis hangs, and the answer is %s", resp.Status)
			}
		})
	}
	wait.Wait()
	eventually(t, "Envoy has seen the clients go", func() bool { return e.Stat("http.front.downstream_rq_active") == 0 })
	server.Resume()
	eventually(t, "both places are free", func() bool { return remaining() == "2" })
	if r := c.Get(t, "/", "x-key", "ann"); r.Status != http.StatusOK {
		t.Errorf("status %d", r.Status)
	}
	if got := remaining(); got != "1" {
		t.Errorf("%s places with one request in flight, want 1", got)
	}
}
