//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// TestPolicies generates the EnvoyFilters of internal/istio/testdata/policies, applies their patches to a static
// configuration with routes as istiod names them, and sends requests.txt through Envoy: statuses and descriptors must
// be as written there, and X-RateLimit headers as in testdata/policies.txt, as with Envoy Gateway in e2e/gateway.
func TestPolicies(t *testing.T) {
	t.Parallel()
	inputs, err := filepath.Glob("../internal/istio/testdata/policies/*.yaml")
	if err != nil || len(inputs) != 12 {
		t.Fatal(inputs, err)
	}
	dir := t.TempDir()
	if out, err := proctest.RunWeir(t, append([]string{"generate", "istio", "--output", dir}, inputs...)...); err != nil {
		t.Fatal(err, out)
	}
	text, err := os.ReadFile("../internal/istio/testdata/policies/requests.txt")
	if err != nil {
		t.Fatal(err)
	}
	headers, err := os.ReadFile("testdata/policies.txt")
	if err != nil {
		t.Fatal(err)
	}
	limits := strings.Split(string(headers), "\n")
	rules := readObject(t, filepath.Join(dir, "weir-istio-rules.yaml")).Data["weir-istio-rules.yaml"]
	s := startWeir(t, ruleFile(t, rules), "--charge-each", "--allow-peek-at-limit")
	log := startRecorder(t, s)
	envoy := startPatched(t, dir, string(text), log.addr)

	var gateway, front string
	for number, line := range strings.Split(string(text), "\n") {
		if name, ok := strings.CutPrefix(line, "gateway "); ok {
			gateway, front = name, envoy.Listener(name)
		}
		request, want, ok := strings.Cut(line, " = ")
		if !ok || gateway == "" {
			continue
		}
		f := strings.Fields(request)
		head := append([]string{f[0] + " " + f[1] + " HTTP/1.1", "Host: " + f[2]}, f[3:]...)
		status, header := sendRaw(t, front, "127.0.0.1", strings.Join(head, "\r\n"))
		got := []string{strconv.Itoa(status)}
		if grpc := header.Get("Grpc-Status"); grpc != "" {
			got = []string{"grpc-" + grpc}
		}
		got = append(got, log.take(t, strings.Count(want, " "))...)
		if got := strings.Join(got, " "); got != want {
			t.Errorf("requests.txt:%d: %s: %s, want %s", number+1, request, got, want)
		}
		if got := gateway + " " + request + " =" + proctest.RateLimit(header); got != limits[0] {
			t.Errorf("requests.txt:%d:\n%s, want\n%s", number+1, got, limits[0])
		}
		limits = limits[1:]
	}
}

// A recorder is a rate limit service that keeps the descriptors of requests, and answers as Weir does.
type recorder struct {
	pb.UnimplementedRateLimitServiceServer

	addr string
	weir pb.RateLimitServiceClient

	mu          sync.Mutex
	descriptors []string // since the last take
}

func startRecorder(t *testing.T, s *weir) *recorder {
	t.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{addr: listener.Addr().String(), weir: s.client(t)}
	server := grpc.NewServer()
	pb.RegisterRateLimitServiceServer(server, r)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return r
}

// ShouldRateLimit keeps each descriptor as LIMIT,* and its other entries; * are the entries gateway, host and route.
func (r *recorder) ShouldRateLimit(ctx context.Context, in *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	answer, err := r.weir.ShouldRateLimit(ctx, in)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range in.GetDescriptors() {
		var entries []string
		for _, e := range d.GetEntries() {
			switch {
			case e.GetKey() == "limit":
				entries = append(entries, e.GetValue())
			case e.GetKey() == "route" && e.GetValue() != "":
				entries = append(entries, "*")
			case e.GetKey() != "gateway" && e.GetKey() != "host" || e.GetValue() == "":
				entries = append(entries, e.GetKey()+"="+e.GetValue())
			}
		}
		text := strings.Join(entries, ",")
		if hits := d.GetHitsAddend(); hits != nil {
			text += fmt.Sprintf("*%d", hits.GetValue())
		}
		r.descriptors = append(r.descriptors, text)
	}
	return answer, err
}

// take returns the descriptors of a request, sorted. It waits until there are at least so many, because Envoy sends
// some of them when the response has ended.
func (r *recorder) take(t *testing.T, least int) []string {
	t.Helper()
	var all []string
	proctest.Eventually(t, "all descriptors of a request", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.descriptors) < least {
			return false
		}
		all, r.descriptors = r.descriptors, nil
		return true
	})
	slices.Sort(all)
	return all
}

type object = map[string]any

// startPatched starts an Envoy with a listener per Gateway of requests.txt, with its routes and its EnvoyFilter.
func startPatched(t *testing.T, dir, requests, weir string) *proctest.Envoy {
	t.Helper()
	var listeners []any
	for section := range strings.SplitSeq("\n"+requests, "\ngateway ") {
		name, lines, _ := strings.Cut(section, "\n")
		if listeners == nil {
			listeners = []any{} // the text before the first Gateway
			continue
		}
		hosts, routesOf := map[string]object{}, map[string][]object{}
		for line := range strings.Lines(lines) {
			if f := strings.Fields(line); len(f) == 4 && f[0] == "route" {
				domain, _, _ := strings.Cut(f[1], ":")
				routesOf[f[1]] = append(routesOf[f[1]], object{
					"name": f[2], "match": object{"prefix": f[3]}, "route": object{"cluster": "upstream"},
				})
				hosts[f[1]] = object{"name": f[1], "domains": []any{domain}, "routes": routesOf[f[1]]}
			}
		}
		routes := object{"name": name, "virtual_hosts": slices.Collect(maps.Values(hosts))}
		filters := applyPatches(t, filepath.Join(dir, "envoyfilter-"+name+"_edge.yaml"), routes, hosts, routesOf)
		listeners = append(listeners, object{
			"name": name, "address": object{"socket_address": object{"address": "127.0.0.1", "port_value": 0}},
			"filter_chains": []any{object{"filters": []any{object{
				"name": "envoy.filters.network.http_connection_manager",
				"typed_config": object{
					"@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",

					"stat_prefix": name, "route_config": routes, "use_remote_address": true, "xff_num_trusted_hops": 1,
					"http_filters": append(filters, object{
						"name":         "envoy.filters.http.router",
						"typed_config": object{"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
					}),
				},
			}}}},
		})
	}
	text, err := json.Marshal(listeners)
	if err != nil {
		t.Fatal(err)
	}
	// Envoy waits longer, and a failed call is no pass.
	config := strings.NewReplacer("outbound|8081||weir.weir-system.svc.cluster.local", "weir", `"0.02s"`, `"2s"`,
		`"failure_mode_deny":false`, `"failure_mode_deny":true`).Replace(string(text))
	up := upstream(t, func(http.ResponseWriter, *http.Request) {})
	return proctest.StartEnvoy(t, fmt.Sprintf(`static_resources:
  listeners: %s
  clusters:
    - name: upstream
      load_assignment: {cluster_name: upstream, endpoints: [{lb_endpoints: [
        {endpoint: {address: {socket_address: %s}}}]}]}
    - name: weir
      load_assignment: {cluster_name: weir, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: %s}}}]}]}
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {http2_protocol_options: {}}
`, config, socketAddress(up), socketAddress(weir)))
}

// applyPatches applies the patches of an EnvoyFilter to a route configuration, and returns the filters to insert.
func applyPatches(
	t *testing.T, path string, routes object, hosts map[string]object, routesOf map[string][]object,
) (filters []any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var filter struct {
		Spec struct {
			ConfigPatches []struct {
				ApplyTo string `yaml:"applyTo"`
				Match   struct {
					RouteConfiguration struct {
						Vhost struct {
							Name  string
							Route struct{ Name string }
						}
					} `yaml:"routeConfiguration"`
				}
				Patch struct{ Value object }
			} `yaml:"configPatches"`
		}
	}
	if err := yaml.Unmarshal(text, &filter); err != nil {
		t.Fatal(err)
	}
	for _, p := range filter.Spec.ConfigPatches {
		host := p.Match.RouteConfiguration.Vhost
		switch p.ApplyTo {
		case "HTTP_FILTER":
			filters = append(filters, p.Patch.Value)
		case "ROUTE_CONFIGURATION":
			maps.Copy(routes, p.Patch.Value)
		case "VIRTUAL_HOST":
			maps.Copy(hosts[host.Name], p.Patch.Value)
		case "HTTP_ROUTE":
			patched := false
			for _, route := range routesOf[host.Name] {
				if route["name"] == host.Route.Name {
					maps.Copy(route, p.Patch.Value)
					patched = true
				}
			}
			if !patched {
				t.Errorf("%s: no route %+v", path, p.Match)
			}
		}
	}
	return filters
}
