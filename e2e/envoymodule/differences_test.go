//go:build e2e

package envoymodule

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What docs/operate/envoy-module.md says that differs from Envoy's filter differs, and nothing else of it.
func TestKnownDifferences(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "access.log")
	w := startTwins(t, rules(t, shop), nil, nil, func(_ int, perRoute func(domain, rateLimits string) string) string {
		limited := "typed_per_filter_config: " + perRoute("shop", byKey)
		// Envoy's own rate_limits are those of the filter alone.
		return `{match: {prefix: /direct}, direct_response: {status: 204}, ` + limited + `},
			{match: {prefix: /redirect}, redirect: {path_redirect: /}, ` + limited + `},
			{match: {prefix: /own}, route: {cluster: upstream, rate_limits: ` + byKey + `}},
			{match: {prefix: /}, route: {cluster: upstream}, ` + limited + `}`
	}, accessLog(log))
	for _, tt := range []struct {
		path               string
		filter, module     int
		byFilter, byModule string // what the access log says
	}{
		{"/", 429, 429, "request_rate_limited RL", "request_rate_limited -"},
		{"/direct", 204, 429, "direct_response -", "request_rate_limited -"},
		{"/redirect", 301, 429, "direct_response -", "request_rate_limited -"},
		{"/own", 429, 200, "request_rate_limited RL", "via_upstream -"},
	} {
		a, b := w.byFilter[0].Get(t, tt.path, "x-key", "teapot"), w.inside[0].Get(t, tt.path, "x-key", "teapot")
		if a.Status != tt.filter || b.Status != tt.module {
			t.Errorf("%s: status %d of the filter and %d of the module, want %d and %d", tt.path, a.Status, b.Status, tt.filter,
				tt.module)
		}
		await(t, w.envoy, func() error {
			text, err := os.ReadFile(log)
			for _, line := range []string{"filter0 " + tt.path + " " + tt.byFilter, "inside0 " + tt.path + " " + tt.byModule} {
				if err == nil && !strings.Contains(string(text), line+"\n") {
					err = fmt.Errorf("the access log has no line %q: %s", line, text)
				}
			}
			return err
		})
	}
}

// accessLog has each listener write the name of the listener, the path, the details and the flags of a response.
func accessLog(path string) func(name, listener string) string {
	return func(name, listener string) string {
		return strings.Replace(listener, "use_remote_address: true", `use_remote_address: true, access_log: [{name: envoy.access_loggers.file, typed_config: {
"@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog, path: `+path+`, log_format: {
text_format_source: {inline_string: "`+name+` %REQ(:PATH)% %RESPONSE_CODE_DETAILS% %RESPONSE_FLAGS%\n"}}}}]`, 1)
	}
}
