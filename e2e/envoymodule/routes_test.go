//go:build e2e

package envoymodule

import (
	"net/http"
	"testing"
)

// A route may have rate_limits of its own, or none, and Envoy may switch the filter off for it.
func TestRoutes(t *testing.T) {
	const off = `{weir: {"@type": type.googleapis.com/envoy.config.route.v3.FilterConfig, disabled: true}}`
	const rest = `route: {cluster: upstream}, typed_per_filter_config: `
	other := `[{"actions": [{"request_headers": {"header_name": "x-other", "descriptor_key": "key"}}]}]`
	e := start(t, listener("front", []string{moduleFilter(config([]string{rules(t, shop)}, byKey))},
		`{match: {prefix: /off}, `+rest+off+`},
		 {match: {prefix: /none}, `+rest+moduleRoute(`{"rate_limits": []}`)+`},
		 {match: {prefix: /other}, `+rest+moduleRoute(`{"rate_limits": `+other+`}`)+`},
		 {match: {prefix: /domain}, `+rest+moduleRoute(`{"domain": "unknown", "rate_limits": `+byKey+`}`)+`},
		 {match: {prefix: /direct}, direct_response: {status: 204}}, `+toUpstream))
	c := newClient(t, e, "front")
	for _, tt := range []struct {
		path, header string
		want         int
	}{
		{"/", "x-key", http.StatusTooManyRequests},
		{"/off", "x-key", http.StatusOK},
		{"/none", "x-key", http.StatusOK},
		{"/other", "x-key", http.StatusOK},
		{"/other", "x-other", http.StatusTooManyRequests},
		{"/domain", "x-key", http.StatusOK},
		{"/direct", "x-key", http.StatusTooManyRequests},
		{"/direct", "x-other", http.StatusNoContent},
	} {
		if r := c.Get(t, tt.path, tt.header, "teapot"); r.Status != tt.want {
			t.Errorf("%s with %s: status %d, want %d", tt.path, tt.header, r.Status, tt.want)
		}
	}
}
