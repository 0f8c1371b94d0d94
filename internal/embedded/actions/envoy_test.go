//go:build e2e

package actions_test

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/embedded/actions"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/launch"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

//go:embed testdata/envoy.yaml
var recorded string

// TestEnvoyMakesTheSameDescriptors draws rate_limits and requests. A real Envoy has a route for each of the drawn
// rate_limits, and its ratelimit filter asks a server of the test, which sees the descriptors that a Plan must make.
func TestEnvoyMakesTheSameDescriptors(t *testing.T) {
	var drawn []*drawnRoute
	casetest.Check(t, 600, func(t *rapid.T) { drawn = append(drawn, drawRoute(t, len(drawn))) })
	for _, m := range matches(t) {
		drawn = append(drawn, &drawnRoute{
			number: len(drawn), rateLimits: toJSON(t, "[{actions: [{"+m.action()+"}]}]"),
			requests: []*drawnRequest{{path: m.Path, headers: m.headers()}},
		})
	}
	server := newRecorder(t)
	envoy := proctest.StartEnvoy(t, envoyConfig(t, server.addr, drawn))
	client := dial(t, envoy.Listener("front"))
	seen := map[string]int{}
	for _, route := range drawn {
		plan := mustParse(t, route.rateLimits)
		for _, req := range route.requests {
			req.path = fmt.Sprintf("/%d/%s", route.number, req.path)
			client.send(req)
			r := req.asEnvoySeesIt()
			var want, got [][]string
			first := r.descriptors(plan)
			r.response = [][2]string{{"x-cost", "12"}, {"x-cost", "7"}}
			for _, ds := range [][]actions.Descriptor{first, plan.OnStreamDone().Descriptors(r.of(plan), nil)} {
				if len(ds) > 0 {
					want = append(want, show(ds))
				}
			}
			for range want {
				if asked := server.next(10 * time.Second); asked != nil {
					got = append(got, showWire(asked))
				}
			}
			for asked := server.next(0); asked != nil; asked = server.next(0) {
				got = append(got, showWire(asked))
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Fatalf("calls of Envoy (-plan +Envoy):\n%s\nrate_limits: %s\nrequest: %s %+q", d, route.rateLimits,
					req.path, req.headers)
			}
			seen["calls"] += len(got)
			seen["requests"]++
		}
	}
	t.Logf("%d routes, %d requests, %d calls", len(drawn), seen["requests"], seen["calls"])
	if seen["calls"] < seen["requests"]/4 {
		t.Errorf("%d requests led to %d calls: the draw rarely makes a descriptor", seen["requests"], seen["calls"])
	}
}

// TestEnvoyRefusesTheSame: what docs/reference/actions.md says that Envoy refuses as well.
func TestEnvoyRefusesTheSame(t *testing.T) {
	proctest.SkipIfShort(t, "Envoy")
	binary, err := launch.FindEnvoy()
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"[{actions: [{source_cluster: {}}], stage: 1}]":                                                    "'stage' field and 'disable_key' field are not supported",
		"[{actions: [{source_cluster: {}}], disable_key: a}]":                                              "'stage' field and 'disable_key' field are not supported",
		"[{actions: [{source_cluster: {}}], hits_addend: {}}]":                                             "hits_addend must contain either a format or a number",
		"[{actions: [{dynamic_metadata: {descriptor_key: a, metadata_key: {key: b, path: [{key: c}]}}}]}]": "Using deprecated option",
		"[{actions: [{source_cluster: {}}], hits_addend: {format: '%REQ(a)%%REQ(b)%'}}]":                   "must contain exactly one substitution",
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			if _, err := parse([]byte(toJSON(t, text))); err == nil {
				t.Error("a plan is made of it")
			}
			file := filepath.Join(t.TempDir(), "envoy.yaml")
			config := envoyConfig(t, "127.0.0.1:1", []*drawnRoute{{rateLimits: toJSON(t, text)}})
			if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), binary, "--mode", "validate", "-c", file).CombinedOutput()
			if err == nil || !strings.Contains(string(out), want) {
				t.Errorf("Envoy: %v, want an error with %s: %s", err, want, out)
			}
		})
	}
}

func envoyConfig(t *testing.T, server string, drawn []*drawnRoute) string {
	t.Helper()
	var routes []any
	for _, d := range drawn {
		perRoute := object{
			"@type":  "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute",
			"domain": fmt.Sprintf("route %d", d.number),
		}
		to := object{"cluster": "there"}
		if d.ofRoute {
			to["rate_limits"] = json.RawMessage(d.rateLimits)
		} else {
			perRoute["rate_limits"] = json.RawMessage(d.rateLimits)
		}
		routes = append(routes, object{
			"match": object{"prefix": fmt.Sprintf("/%d/", d.number)}, "route": to,
			"metadata":                object{"filter_metadata": object{"route": json.RawMessage(metadata)}},
			"typed_per_filter_config": object{"envoy.filters.http.ratelimit": perRoute},
		})
	}
	text, err := json.Marshal(routes)
	if err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(server)
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer("ROUTES", string(text), "METADATA", metadata, "HOST", host, "PORT", port).Replace(recorded)
}
