//go:build e2e

package envoymodule

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

const budget = `
domain: shop
descriptors:
  - {key: key, rate_limit: {requests_per_unit: 10000, unit: year, reservation: {estimate: 500, at_most: 1000}}}
`

// tokens reads max_tokens of requests and the used tokens of responses.
const tokens = `{name: envoy.filters.http.json_to_metadata, typed_config: {
  "@type": type.googleapis.com/envoy.extensions.filters.http.json_to_metadata.v3.JsonToMetadata,
  request_rules: {rules: [{selectors: [{key: max_tokens}],
    on_present: {metadata_namespace: llm, key: max_tokens, type: STRING}}]},
  response_rules: {rules: [{selectors: [{key: usage}, {key: total_tokens}],
    on_present: {metadata_namespace: llm, key: total_tokens, type: NUMBER}}]}}}`

// startsAndEnds are the rate_limits of the page about LLM tokens, as the module can read them.
var startsAndEnds = strings.NewReplacer("HINT", `{"metadata": {"descriptor_key": "weir_hint", "source": "DYNAMIC",
	"skip_if_absent": true, "metadata_key": {"key": "llm", "path": [{"key": "max_tokens"}]}}}`,
	"START", `{"metadata": {"descriptor_key": "weir_start", "source": "DYNAMIC", "default_value": "none",
	"metadata_key": {"key": "envoy.filters.http.ratelimit", "path": [{"key": "weir_start"}]}}}`,
	"KEY", `{"request_headers": {"header_name": "x-key", "descriptor_key": "key"}}`).Replace(
	`[{"actions": [KEY, HINT]}, {"actions": [KEY, START], "apply_on_stream_done": true,
	"hits_addend": {"format": "%DYNAMIC_METADATA(llm:total_tokens)%"}}]`)

// TestReservations has 100 requests at once on a budget for 10 of their max_tokens: exactly 10 pass. They use 400
// tokens each, and exactly 6 more pass. A failed request keeps its estimate.
func TestReservations(t *testing.T) {
	for _, name := range []string{"memory", "redis"} {
		t.Run(name, func(t *testing.T) {
			store := name
			if name == "redis" {
				store = redistest.Start(t).URL()
			}
			release, arrived := make(chan struct{}), atomic.Int64{}
			up := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/" {
					w.WriteHeader(http.StatusInternalServerError)
					return
				}
				arrived.Add(1)
				select {
				case <-release:
				case <-r.Context().Done():
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write([]byte(`{"usage": {"total_tokens": 400}}`))
			})
			flags := []string{rules(t, budget), "--store=" + store, "--store-timeout=5s"}
			e := startBefore(t, up, listener("front", []string{tokens, moduleFilter(config(flags, startsAndEnds, withHeaders))},
				lookRoute()+toUpstream))
			c := newClient(t, e, "front")
			send := func(path, body string) int {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.URL+path, strings.NewReader(body))
				if err != nil {
					t.Error(err)
					return 0
				}
				req.Header.Set("X-Key", "ann")
				req.Header.Set("Content-Type", "application/json")
				r, err := c.Do(req)
				if err != nil {
					t.Error(err)
				}
				return r.Status
			}
			remains := func(want string) {
				proctest.Eventually(t, want+" tokens remain", func() bool {
					return c.Get(t, "/look", "x-key", "ann").Header.Get("X-Ratelimit-Remaining") == want
				})
			}
			for _, round := range []struct {
				passes  int64
				remains string
			}{{10, "6000"}, {6, "3600"}} {
				before, denied := arrived.Load(), atomic.Int64{}
				var all sync.WaitGroup
				for range 100 {
					all.Go(func() {
						if send("/", `{"max_tokens": 1000}`) == http.StatusTooManyRequests {
							denied.Add(1)
						}
					})
				}
				proctest.Eventually(t, "all are decided", func() bool { return denied.Load()+arrived.Load()-before == 100 })
				if passed := arrived.Load() - before; passed != round.passes {
					t.Errorf("%d of 100 requests passed, want %d", passed, round.passes)
				}
				for range arrived.Load() - before {
					release <- struct{}{}
				}
				all.Wait()
				remains(round.remains)
			}
			if status := send("/fails", `{}`); status != http.StatusInternalServerError {
				t.Errorf("status %d", status)
			}
			remains("3100")
		})
	}
}
