package app

import (
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

const twoStores = `
domain: shop
descriptors:
  - key: client
    rate_limits:
      - {name: burst, store: per_second, algorithm: funnel, requests_per_unit: 3, unit: hour}
      - {name: daily, algorithm: funnel, requests_per_unit: 5, unit: day}
`

// A limit with store: NAME is counted there, and a request in both stores is charged in both or in none.
func TestNamedStore(t *testing.T) {
	first, second := redistest.Start(t), redistest.Start(t)
	o := options(t, twoStores)
	o.Store, o.StoreKeyPrefix = first.URL(), "weir:"
	o.NamedStores = map[string]string{"per_second": second.URL() + "?key_prefix=hot:"}
	o.CachedDenials = true
	p := start(t, o)
	for i, want := range []string{"OK", "OK", "OK", "OVER_LIMIT", "OVER_LIMIT"} {
		if got := p.ask("a"); got != want {
			t.Errorf("request %d: %s, want %s", i+1, got, want)
		}
	}
	for server, want := range map[*redistest.Server]string{
		first:  "weir:1:funnel:daily|shop|client=a",
		second: "hot:1:funnel:burst|shop|client=a",
	} {
		keys, _ := redistest.Do(t, server, "keys", "*funnel*").([]any)
		if len(keys) != 1 || keys[0] != want {
			t.Errorf("the counters are %v, want %s", keys, want)
		}
	}
}
