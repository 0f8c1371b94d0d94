//go:build e2e

package envoymodule

import (
	"net/http"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/envoytest"
	"github.com/weir-ratelimit/weir/internal/test/moduletest"
)

// plans limits nobody but the plan free, and says what the plan is.
const plans = `
domain: shop
descriptors:
  - key: plan
    value: free
    rate_limit: {unit: hour, requests_per_unit: 0}
  - key: plan
    value: gold
    rate_limit: {unit: hour, requests_per_unit: 50}
    metadata: {plan: {name: gold}}
`

// What other filters and the route know as metadata makes descriptors and costs. What a rule knows comes back as
// metadata, where Envoy's own filter keeps it.
func TestMetadata(t *testing.T) {
	const set = `{name: envoy.filters.http.header_to_metadata, typed_config: {
  "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config,
  request_rules: [{header: x-plan, on_header_present: {metadata_namespace: users, key: plan, type: STRING}},
                  {header: x-number, on_header_present: {metadata_namespace: users, key: plan, type: NUMBER}},
                  {header: x-cost, on_header_present: {metadata_namespace: users, key: cost, type: STRING}}]}}`
	key := func(rest string) string {
		return `{"actions": [{"metadata": {"descriptor_key": "plan", "metadata_key": {"key": "users", "path": [{"key": "plan"}]}` +
			rest + `}}], "hits_addend": {"format": "%DYNAMIC_METADATA(users:cost)%"}}`
	}
	e := start(t, listener("front", []string{set, moduleFilter(config([]string{rules(t, plans)}, `[`+key("")+`]`,
		`"enable_x_ratelimit_headers": "DRAFT_VERSION_03"`))}, `
  {match: {prefix: /route}, route: {cluster: upstream}, metadata: {filter_metadata: {users: {plan: free}}},
   typed_per_filter_config: `+moduleRoute(`{"rate_limits": [{"actions": [{"metadata": {"descriptor_key": "plan",
     "source": "ROUTE_ENTRY", "metadata_key": {"key": "users", "path": [{"key": "plan"}]}}}]}]}`)+`},
  {match: {prefix: /else}, route: {cluster: upstream},
   typed_per_filter_config: `+moduleRoute(`{"rate_limits": [`+strings.Replace(key(`, "default_value": "free"`), "%DYNAMIC_METADATA(users:cost)%", "%REQ(x-cost)%", 1)+`]}`)+`},
  {match: {prefix: /}, route: {cluster: upstream}, response_headers_to_add: [{header: {key: x-seen,
    value: "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:metadata:plan:name)%"}}]}`))
	c := newClient(t, e, "front")
	for _, tt := range []struct {
		path, name, plan, cost string
		status                 int
		remaining              string
	}{
		{"/", "x-plan", "gold", "7", http.StatusOK, "43"},
		{"/", "x-plan", "gold", "3", http.StatusOK, "40"},
		{"/", "x-plan", "free", "1", http.StatusTooManyRequests, "0"},
		{"/", "x-plan", "", "1", http.StatusOK, ""},
		{"/", "x-number", "7", "1", http.StatusOK, ""}, // no text
		{"/", "x-plan", "gold", "much", http.StatusOK, ""},
		{"/route", "x-plan", "gold", "1", http.StatusTooManyRequests, ""},
		{"/else", "x-plan", "", "1", http.StatusTooManyRequests, "0"},
		{"/else", "x-plan", "gold", "1", http.StatusOK, "39"},
	} {
		r := c.Get(t, tt.path, tt.name, tt.plan, "x-cost", tt.cost)
		if tt.path == "/route" {
			tt.remaining = r.Header.Get("X-Ratelimit-Remaining")
		}
		if got := r.Header.Get("X-Ratelimit-Remaining"); r.Status != tt.status || got != tt.remaining {
			t.Errorf("%+v: status %d, %q remain", tt, r.Status, got)
		}
		if seen := r.Header.Get("X-Seen"); tt.path == "/" && (seen == "gold") != (tt.remaining != "" && tt.plan == "gold") {
			t.Errorf("%+v: the rule's metadata is %q", tt, seen)
		}
	}
}

// Values below a value cannot be read, which is said at load.
func TestNestedMetadataIsRefused(t *testing.T) {
	limits := `[{"actions": [{"metadata": {"descriptor_key": "sub", "metadata_key": {"key": "jwt", "path": [{"key": "payload"},
		{"key": "sub"}]}}}]}]`
	e := envoytest.Launch(t, bootstrap([]string{listener("front",
		[]string{moduleFilter(config([]string{rules(t, plans)}, limits))}, toUpstream)},
		[]string{cluster("upstream", "127.0.0.1:1")}), envoytest.Options{Modules: moduletest.Folder(t)})
	want := "rate_limits: metadata jwt, key payload:sub: Envoy shows a module only values directly below a namespace"
	if code := e.Wait(patience); code == 0 || !strings.Contains(e.Output(), want) {
		t.Errorf("exit code %d, want it to say %q:\n%s", code, want, e.Output())
	}
}
