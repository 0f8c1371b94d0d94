//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"text/template"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// chaosFront is one Envoy with a listener in front of each process, so that it is known which one decided. Its
// filters wait as long as Envoy's do by themselves, 20 ms, or without -chaos longer, and answer 500 if there was no
// answer: by default they would let pass.
var chaosFront = template.Must(template.New("chaos front").Parse(`
static_resources:
  listeners:
    - name: back
      address: {socket_address: {{.Back}}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: back
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
                route_config:
                  virtual_hosts:
                    - {name: all, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200}}]}
{{- range .Weir}}
    - name: {{.Name}}
      address: {socket_address: {address: 127.0.0.1, port_value: 0}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: {{.Name}}
                http_filters:
                  - name: envoy.filters.http.ratelimit
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
                      domain: shop
                      failure_mode_deny: true
                      timeout: {{$.Timeout}}
                      rate_limit_service:
                        transport_api_version: V3
                        grpc_service: {envoy_grpc: {cluster_name: {{.Name}}}}
                  - name: envoy.filters.http.router
                    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      rate_limits:
                        - actions: [{request_headers: {header_name: x-seen, descriptor_key: seen}}]
                        - actions: [{request_headers: {header_name: x-deny, descriptor_key: deny}}]
                        - actions: [{request_headers: {header_name: x-local, descriptor_key: local}}]
                      routes: [{match: {prefix: /}, route: {cluster: upstream}}]
{{- end}}
  clusters:
    - name: upstream
      load_assignment:
        cluster_name: upstream
        endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {{.Back}}}}}]}]
{{- range .Weir}}
    - name: {{.Name}}
      load_assignment:
        cluster_name: {{.Name}}
        endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {{.Addr}}}}}]}]
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {http2_protocol_options: {}}
{{- end}}
`))

// front is that Envoy.
type front struct {
	*proctest.Envoy
	clients []*http.Client // of each process's listener
	urls    []string
}

func startFront(t *testing.T, weirs []*weir) *front {
	t.Helper()
	type weir struct{ Name, Addr string }
	with := struct {
		Back, Timeout string
		Weir          []weir
	}{Back: socketAddress(proctest.FreeAddr(t)), Timeout: fmt.Sprintf("%.3fs", late().Seconds())}
	for i, s := range weirs {
		with.Weir = append(with.Weir, weir{Name: "weir" + string(rune('a'+i)), Addr: socketAddress(s.GRPC)})
	}
	var config strings.Builder
	if err := chaosFront.Execute(&config, with); err != nil {
		t.Fatal(err)
	}
	f := &front{Envoy: proctest.StartEnvoy(t, config.String())}
	for _, w := range with.Weir {
		transport := &http.Transport{MaxIdleConnsPerHost: 32}
		t.Cleanup(transport.CloseIdleConnections)
		f.clients = append(f.clients, &http.Client{Transport: transport})
		f.urls = append(f.urls, "http://"+f.Listener(w.Name))
	}
	return f
}

// caller asks through Envoy's listener before the i-th process.
func (f *front) caller(i int) caller {
	return func(ctx context.Context, rule, key string) (passed, answered bool) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.urls[i], http.NoBody)
		if err != nil {
			return false, false
		}
		req.Header.Set("X-"+rule, key)
		resp, err := f.clients[i].Do(req)
		if err != nil {
			return false, false
		}
		_, _ = io.Copy(io.Discard, resp.Body) // it has none
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK, resp.StatusCode == http.StatusOK ||
			resp.StatusCode == http.StatusTooManyRequests
	}
}

// counted is what Envoy's filters have counted.
type counted struct{ asked, errors, allowed int }

func (f *front) counted() counted {
	stat := func(name string) int { return int(f.Stat("cluster.upstream.ratelimit." + name)) }
	c := counted{errors: stat("error"), allowed: stat("failure_mode_allowed")}
	c.asked = stat("ok") + stat("over_limit") + c.errors
	return c
}

// since is what was counted after that.
func (c counted) since(before counted) counted {
	return counted{c.asked - before.asked, c.errors - before.errors, c.allowed - before.allowed}
}
