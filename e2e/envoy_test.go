//go:build e2e

package e2e

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"text/template"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// proxy says how an Envoy is set up for a test. Texts in YAML are in flow style.
type proxy struct {
	Weir     []string // the processes' host:port
	Upstream string   // host:port
	Domain   string
	Timeout  string // of the filter; by default 2s

	// RateLimits are the virtual host's rate_limits; by default the client's address.
	RateLimits string
	// PerFilter are the rate_limits of the route's typed_per_filter_config; none by default.
	PerFilter string
	// Look are the same for the path /look; none by default.
	Look string
	// CA, Cert and Key are files: Envoy asks the processes over TLS, with a certificate of its own.
	CA, Cert, Key string
	// Collector is the host:port that Envoy sends its traces to, by OTLP; every request is traced.
	Collector string
	// Filters and Routes are all http_filters and routes; by default the rate limit filter, and a route to Upstream.
	Filters, Routes string
	// HealthChecks makes Envoy ask the processes' grpc.health.v1.
	HealthChecks bool
}

// The filter never fails open and waits long: whatever is wrong with a call shows as a status 500, and never as a pass.
var bootstrap = template.Must(template.New("envoy").Parse(`
{{- if .Collector}}
layered_runtime: {layers: [{name: all, static_layer: {tracing.opentelemetry.min_flush_spans: 1}}]}
{{- end}}
static_resources:
  listeners:
    - name: front
      address: {socket_address: {address: 127.0.0.1, port_value: 0}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: front
                use_remote_address: true
{{- if .Collector}}
                tracing:
                  provider:
                    name: envoy.tracers.opentelemetry
                    typed_config:
                      "@type": type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig
                      grpc_service: {envoy_grpc: {cluster_name: collector}, timeout: 1s}
                      service_name: envoy
{{- end}}
{{- if .Filters}}
                http_filters: {{.Filters}}
{{- else}}
                http_filters:
                  - name: envoy.filters.http.ratelimit
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
                      domain: {{.Domain}}
                      failure_mode_deny: true
                      timeout: {{or .Timeout "2s"}}
                      enable_x_ratelimit_headers: DRAFT_VERSION_03
                      rate_limit_service:
                        transport_api_version: V3
                        grpc_service: {envoy_grpc: {cluster_name: weir}}
                  - name: envoy.filters.http.router
                    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
{{- end}}
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      rate_limits: {{.RateLimits}}
{{- if .Routes}}
                      routes: {{.Routes}}
{{- else}}
                      routes:
{{- if .Look}}
                        - match: {path: /look}
                          route: {cluster: upstream}
                          {{- template "per filter" .Look}}
{{- end}}
                        - match: {prefix: /}
                          route: {cluster: upstream}
                          {{- with .PerFilter}}{{template "per filter" .}}{{end}}
{{- end}}
  clusters:
    - name: upstream
      type: STRICT_DNS
      load_assignment: {cluster_name: upstream, endpoints: [{lb_endpoints: [{{template "endpoint" .Upstream}}]}]}
{{- if .Collector}}
    - name: collector
      type: STRICT_DNS
      load_assignment: {cluster_name: collector, endpoints: [{lb_endpoints: [{{template "endpoint" .Collector}}]}]}
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {http2_protocol_options: {}}
{{- end}}
    - name: weir
      type: STRICT_DNS
      load_assignment:
        cluster_name: weir
        endpoints: [{lb_endpoints: [{{range .Weir}}{{template "endpoint" .}}, {{end}}]}]
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {http2_protocol_options: {}}
{{- if .CA}}
      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
          common_tls_context:
            tls_certificates: [{certificate_chain: {filename: {{.Cert}}}, private_key: {filename: {{.Key}}}}]
            validation_context:
              trusted_ca: {filename: {{.CA}}}
              match_typed_subject_alt_names: [{san_type: DNS, matcher: {exact: weir.mesh}}]
{{- end}}
{{- if .HealthChecks}}
      health_checks:
        - timeout: 1s
          interval: 0.2s
          no_traffic_interval: 0.2s
          healthy_threshold: 1
          unhealthy_threshold: 1
          grpc_health_check: {service_name: envoy.service.ratelimit.v3.RateLimitService}
{{- end}}
{{define "per filter"}}
                          typed_per_filter_config:
                            envoy.filters.http.ratelimit:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                              rate_limits: {{.}}
{{- end}}
{{define "endpoint"}}{endpoint: {address: {socket_address: {{.}}}}}{{end}}
`))

// start runs the Envoy. The upstream that answers everything with 200 is used where none is given.
func (p proxy) start(t *testing.T) *proctest.Envoy {
	t.Helper()
	if p.Upstream == "" {
		p.Upstream = upstream(t, func(http.ResponseWriter, *http.Request) {})
	}
	if p.RateLimits == "" {
		p.RateLimits = "[{actions: [{remote_address: {}}]}]"
	}
	p.Upstream = socketAddress(p.Upstream)
	if p.Collector != "" {
		p.Collector = socketAddress(p.Collector)
	}
	weir := p.Weir
	p.Weir = nil
	for _, addr := range weir {
		p.Weir = append(p.Weir, socketAddress(addr))
	}
	var config strings.Builder
	if err := bootstrap.Execute(&config, p); err != nil {
		t.Fatal(err)
	}
	return proctest.StartEnvoy(t, config.String())
}

// socketAddress is host:port as Envoy has it.
func socketAddress(addr string) string {
	host, port, _ := strings.Cut(addr, ":")
	return "{address: " + host + ", port_value: " + port + "}"
}

// upstream is an HTTP server for Envoy to send requests to.
func upstream(t *testing.T, answer http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}
