//go:build e2e

package envoymodule

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// Time passes for both alike: what comes back to a limit admits the same requests.
func TestTimePassesAsInTheService(t *testing.T) {
	t.Parallel()
	algorithms := map[string]string{
		"funnel": "unit: second, requests_per_unit: 1, burst: 2", "token_bucket": "unit: second, requests_per_unit: 1, burst: 2",
		"sliding_log": "window: 2s, requests_per_unit: 2", "fixed_window": "window: 2s, requests_per_unit: 2, align: first_hit",
		"smooth_bursty": "unit: second, requests_per_unit: 1",
	}
	var text strings.Builder
	text.WriteString("domain: shop\ndescriptors:\n")
	for name, words := range algorithms {
		fmt.Fprintf(&text, "  - {key: %s, rate_limit: {algorithm: %[1]s, %s}}\n", name, words)
	}
	w := startTwins(t, rules(t, text.String()), []string{"--store=" + redistest.Start(t).URL(), "--store-timeout=5s"},
		[]string{"--store=" + redistest.Start(t).URL(), "--store-timeout=5s"},
		func(_ int, perRoute func(domain, rateLimits string) string) string {
			var routes []string
			for name := range algorithms {
				routes = append(routes, fmt.Sprintf("{match: {prefix: /%s}, route: {cluster: upstream}, typed_per_filter_config: %s}",
					name, perRoute("shop", `[{"actions": [{"request_headers": {"header_name": "x-key", "descriptor_key": "`+name+`"}}]}]`)))
			}
			return strings.Join(routes, ", ")
		})
	start := time.Now()
	for try := 0; time.Since(start) < patience; try++ {
		if w.playInTime(t, algorithms, fmt.Sprint("try", try)) {
			return
		}
	}
	t.Error("the machine is too busy to compare")
}

// playInTime sends requests at moments half a second from those at which a limit admits more. It returns false if the
// two of a pair were sent too far from each other to compare.
func (w *twins) playInTime(t *testing.T, algorithms map[string]string, key string) bool {
	t.Helper()
	const half = 500 * time.Millisecond
	byFilter, inside := w.byFilter[1], w.inside[1]
	start := time.Now()
	for _, step := range []struct {
		at       time.Duration
		requests int
	}{{0, 4}, {3 * half, 3}, {5 * half, 3}} {
		time.Sleep(time.Until(start.Add(step.at)))
		for name := range algorithms {
			passed := 0
			for range step.requests {
				want, got := byFilter.Get(t, "/"+name, "x-key", key), inside.Get(t, "/"+name, "x-key", key)
				if time.Since(start)-step.at > half*4/5 {
					return false
				}
				if wrong := unlike(want, got); wrong != "" {
					t.Errorf("%s after %s: %s\nfilter: %s\nmodule: %s", name, step.at, wrong, show(want), show(got))
				}
				if got.Status == http.StatusOK {
					passed++
				}
			}
			if step.at == 5*half && (passed == 0 || passed == step.requests) {
				t.Errorf("%s: %d of %d passed after %s", name, passed, step.requests, step.at)
			}
		}
	}
	return true
}

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
