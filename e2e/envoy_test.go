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
var bootstrap = template.Must(template.ParseFiles("testdata/envoy.yaml.tmpl"))

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
