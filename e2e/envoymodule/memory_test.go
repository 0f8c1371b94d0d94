//go:build e2e

package envoymodule

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/envoytest"
	"github.com/weir-ratelimit/weir/internal/test/moduletest"
)

// shop limits each key to 50 requests a year, and the key teapot to none, with a response of its own.
const shop = `
domain: shop
descriptors:
  - key: key
    value: teapot
    rate_limit: {unit: year, requests_per_unit: 0}
    response: {headers: {X-Kettle: "no", Content-Type: application/json}, body: '{"tea": false}'}
  - key: key
    value: shadowy
    shadow_mode: true
    rate_limit: {unit: year, requests_per_unit: 0}
  - key: key
    rate_limit: {unit: year, requests_per_unit: 50, name: per-key}
`

// Two workers share the counters: of 400 requests at once exactly the limit passes.
func TestExactCountsOfTwoWorkers(t *testing.T) {
	e := start(t, listener("front", []string{moduleFilter(config([]string{rules(t, shop)}, byKey))}, toUpstream))
	c := newClient(t, e, "front")
	var passed, denied atomic.Int64
	var wait sync.WaitGroup
	for range 16 {
		wait.Go(func() {
			for range 25 {
				r, err := c.Try(t, "/", "x-key", "ann")
				switch {
				case err != nil:
					t.Error(err)
				case r.Status == http.StatusOK:
					passed.Add(1)
				case r.Status == http.StatusTooManyRequests:
					denied.Add(1)
				default:
					t.Errorf("status %d", r.Status)
				}
			}
		})
	}
	wait.Wait()
	if passed.Load() != 50 || denied.Load() != 350 {
		t.Errorf("%d passed and %d were denied, want 50 and 350", passed.Load(), denied.Load())
	}
	for name, want := range map[string]uint64{"ok": 50, "over_limit": 350, "error": 0} {
		if got := e.Stat("dynamicmodulescustom." + name); got != want {
			t.Errorf("Envoy's counter %s is %d, want %d", name, got, want)
		}
	}
}

// What a client sees of limits: Retry-After, X-RateLimit-*, a rule's response, and nothing of shadow mode.
func TestResponses(t *testing.T) {
	e := start(t, listener("front", []string{moduleFilter(config([]string{rules(t, shop)}, byKey,
		`"enable_x_ratelimit_headers": "DRAFT_VERSION_03"`))}, toUpstream))
	c := newClient(t, e, "front")
	ok := c.Get(t, "/", "x-key", "bob")
	if ok.Status != http.StatusOK || ok.Body != "upstream" || ok.Header.Get("X-Ratelimit-Remaining") != "49" ||
		ok.Header.Get("X-Ratelimit-Limit") != `50, 50;w=31536000;name="per-key"` || ok.Header.Get("X-Ratelimit-Reset") == "" {
		t.Errorf("a request that passes: %+v", ok)
	}
	for range 49 {
		c.Get(t, "/", "x-key", "bob")
	}
	over := c.Get(t, "/", "x-key", "bob")
	if over.Status != http.StatusTooManyRequests || over.Header.Get("X-Envoy-Ratelimited") != "true" ||
		over.Header.Get("Retry-After") == "" || over.Header.Get("X-Ratelimit-Remaining") != "0" {
		t.Errorf("a request that is denied: %+v", over)
	}
	tea := c.Get(t, "/", "x-key", "teapot")
	if tea.Status != http.StatusTooManyRequests || tea.Body != `{"tea": false}` || tea.Header.Get("X-Kettle") != "no" ||
		strings.Join(tea.Header.Values("Content-Type"), "|") != "application/json" {
		t.Errorf("a rule's response: %+v", tea)
	}
	if r := c.Get(t, "/", "x-key", "shadowy"); r.Status != http.StatusOK {
		t.Errorf("shadow mode: %+v", r)
	}
	if r := c.Get(t, "/"); r.Status != http.StatusOK || r.Header.Get("X-Ratelimit-Limit") != "" {
		t.Errorf("a request without the header: %+v", r)
	}
}

// A wrong configuration is refused when Envoy loads it, and Envoy's log says why.
func TestRefusedAtLoad(t *testing.T) {
	for name, tt := range map[string]struct{ config, want string }{
		"flag":    {config([]string{"--no-such-flag"}, byKey), "filter_config: flags: unknown flag --no-such-flag"},
		"rules":   {config([]string{"--rules=/no/such/file"}, byKey), "--rules: "},
		"field":   {config([]string{rules(t, shop)}, byKey, `"domian": "x"`), `"domian" is no field; the fields are flags, domain,`},
		"actions": {config([]string{rules(t, shop)}, `[{"actions": [{"dynamic": {}}]}]`), "rate_limits[0].actions[0].dynamic: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := envoytest.Launch(t, bootstrap([]string{listener("front", []string{moduleFilter(tt.config)}, toUpstream)},
				[]string{cluster("upstream", "127.0.0.1:1")}), envoytest.Options{Modules: moduletest.Folder(t)})
			if code := e.Wait(patience); code == 0 || !strings.Contains(e.Output(), tt.want) {
				t.Errorf("exit code %d, want it to say %q:\n%s", code, tt.want, e.Output())
			}
		})
	}
}
