//go:build e2e

// Package envoymodule tests Weir inside a real Envoy, as a dynamic module.
package envoymodule

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/launch"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

func TestMain(m *testing.M) { casetest.Main(m, 100) }

// patience is how long something may take on a busy machine.
const patience = proctest.Patience

// byKey limits clients by a header.
const byKey = `[{"actions": [{"request_headers": {"header_name": "x-key", "descriptor_key": "key"}}]}]`

const leased = `%DYNAMIC_METADATA(envoy.filters.http.ratelimit:leased)%`

// byKeyAtBothEnds is byKey with a second entry, which charges the hits when the stream is done.
func byKeyAtBothEnds(hits string) string {
	const actions = `{"actions": [{"request_headers": {"header_name": "x-key", "descriptor_key": "key"}}]`
	return `[` + actions + `}, ` + actions + `, "apply_on_stream_done": true, "hits_addend": ` + hits + `}]`
}

// lookRoute is a route that asks how much remains of a key, and costs nothing.
func lookRoute() string {
	return `{match: {prefix: /look}, route: {cluster: upstream}, typed_per_filter_config: ` + moduleRoute(
		`{"rate_limits": [{"actions": [{"request_headers": {"header_name": "x-key", "descriptor_key": "key"}}],
		"hits_addend": {"number": 0}}]}`) + `}, `
}

// config is a filter_config in JSON, with the flags and the words after them.
func config(flags []string, rateLimits string, words ...string) string {
	list, err := json.Marshal(append([]string{"--log-level=debug"}, flags...))
	if err != nil {
		panic(err)
	}
	all := append([]string{`"domain": "shop"`, `"flags": ` + string(list)}, words...)
	if rateLimits != "" {
		all = append(all, `"rate_limits": `+rateLimits)
	}
	return "{" + strings.Join(all, ", ") + "}"
}

// moduleFilter is the HTTP filter with a filter_config.
func moduleFilter(config string) string {
	return `{name: weir, typed_config: {
  "@type": type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter,
  dynamic_module_config: {name: weir}, filter_name: weir,
  filter_config: {"@type": type.googleapis.com/google.protobuf.Struct, value: ` + config + `}}}`
}

// moduleRoute is the filter's configuration of a route.
func moduleRoute(config string) string {
	return `{weir: {
  "@type": type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilterPerRoute,
  dynamic_module_config: {name: weir}, filter_name: weir,
  filter_config: {"@type": type.googleapis.com/google.protobuf.Struct, value: ` + config + `}}}`
}

// listener is a listener with filters before the router. Routes are in flow style.
func listener(name string, filters []string, routes string) string {
	filters = append(filters, `{name: envoy.filters.http.router, typed_config: {`+
		`"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}`)
	return fmt.Sprintf(`{name: %s, address: {socket_address: {address: 127.0.0.1, port_value: 0}}, filter_chains: [{filters: [
  {name: envoy.filters.network.http_connection_manager, typed_config: {
    "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager,
    stat_prefix: %[1]s, use_remote_address: true, http_filters: [%s],
    route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [%s]}]}}}]}]}`,
		name, strings.Join(filters, ", "), routes)
}

// toUpstream sends all requests to the cluster upstream.
const toUpstream = `{match: {prefix: /}, route: {cluster: upstream}}`

// cluster is a cluster at an address.
func cluster(name, addr string, more ...string) string {
	return fmt.Sprintf(`{name: %s, load_assignment: {cluster_name: %[1]s, endpoints: [{lb_endpoints: [{endpoint: {address: {
  socket_address: %s}}}]}]}%s}`, name, socketAddress(addr), strings.Join(append([]string{""}, more...), ", "))
}

func socketAddress(addr string) string {
	host, port, _ := net.SplitHostPort(addr)
	return fmt.Sprintf(`{address: %s, port_value: %s}`, host, port)
}

// bootstrap is a configuration of Envoy.
func bootstrap(listeners, clusters []string) string {
	return "static_resources:\n  listeners: [" + strings.Join(listeners, ",\n") + "]\n  clusters: [" +
		strings.Join(clusters, ",\n") + "]\n"
}

// upstream answers every request with 200.
func upstream(t *testing.T) string {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "upstream") })
}

// serve returns the address of a server.
func serve(t *testing.T, handle http.HandlerFunc) string {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: handle}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-ended
	})
	return l.Addr().String()
}

// start runs an Envoy with two workers and the module.
func start(t *testing.T, listeners ...string) *proctest.Envoy {
	t.Helper()
	return startBefore(t, upstream(t), listeners...)
}

// startBefore is start before another upstream.
func startBefore(t *testing.T, upstream string, listeners ...string) *proctest.Envoy {
	t.Helper()
	return proctest.StartEnvoyWith(t, bootstrap(listeners, []string{cluster("upstream", upstream)}),
		proctest.EnvoyOptions{Workers: 2, Modules: moduleFolder(t)})
}

// rules writes a rule file and returns the flag that names it.
func rules(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return "--rules=" + path
}

// client sends requests to a listener.
type client struct{ proctest.Client }

func newClient(t *testing.T, e *proctest.Envoy, listener string) *client {
	t.Helper()
	return newClientTo(t, e.Listener(listener))
}

func newClientTo(t *testing.T, addr string) *client {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	return &client{proctest.Client{
		HTTP: &http.Client{Transport: transport, Timeout: patience, CheckRedirect: noRedirects}, URL: "http://" + addr,
	}}
}

func noRedirects(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// getPage returns the body of an answer with status 200.
func getPage(t *testing.T, url string) string {
	t.Helper()
	body, err := launch.Get(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// metric returns the value of a metric without labels.
func metric(t *testing.T, addr, name string) float64 {
	t.Helper()
	for line := range strings.Lines(getPage(t, "http://"+addr+"/metrics")) {
		if text, ok := strings.CutPrefix(line, name+" "); ok {
			value, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			if err != nil {
				t.Fatal(err)
			}
			return value
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// run runs a command of weir and returns what it wrote.
func run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := proctest.RunWeir(t, args...)
	if err != nil {
		t.Errorf("weir %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}
