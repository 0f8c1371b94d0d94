//go:build e2e

// Package rlqs tests quotas (Rate Limit Quota Service) with a real Envoy.
package rlqs

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

func TestMain(m *testing.M) { casetest.Main(m, 100) }

// patience is how long something may take on a busy machine, and tick is how often Envoy reports.
const patience, tick = proctest.Patience, 5 * time.Second

// settings are the bucket settings that a request chooses by the header x-settings.
var settings = map[string]string{
	"allow": "",
	"deny":  `, no_assignment_behavior: {fallback_rate_limit: {blanket_rule: DENY_ALL}}`,
}

// headerInput reads a request header.
func headerInput(name string) string {
	return `{name: ` + name + `, typed_config: {
  "@type": type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput, header_name: ` + name + `}}`
}

// quotaListener is a listener whose requests are counted in buckets by the header x-bucket, by the server behind a
// cluster.
func quotaListener(name, domain, cluster string) string {
	var bySettings []string
	for _, n := range slices.Sorted(maps.Keys(settings)) {
		bySettings = append(bySettings, n+`: {action: {name: quota, typed_config: {
  "@type": type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaBucketSettings,
  bucket_id_builder: {bucket_id_builder: {bucket: {custom_value: `+headerInput("x-bucket")+`}}},
  reporting_interval: 1s`+settings[n]+`}}}`)
	}
	return listener(name, fmt.Sprintf(`{name: envoy.filters.http.rate_limit_quota, typed_config: {
        "@type": type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaFilterConfig,
        rlqs_server: {envoy_grpc: {cluster_name: %s}}, domain: %s,
        bucket_matchers: {matcher_tree: {input: %s, exact_match_map: {map: {%s}}}}}}`,
		cluster, domain, headerInput("x-settings"), strings.Join(bySettings, ",\n")),
		`routes: [{match: {prefix: /}, direct_response: {status: 200}}]`)
}

// listener is a listener with a filter, and with a virtual host.
func listener(name, filter, host string) string {
	return fmt.Sprintf(`{name: %s, address: {socket_address: {address: 127.0.0.1, port_value: 0}}, filter_chains: [{filters: [
  {name: envoy.filters.network.http_connection_manager, typed_config: {
    "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager,
    stat_prefix: %[1]s, http_filters: [%s,
      {name: envoy.filters.http.router,
        typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}],
    route_config: {virtual_hosts: [{name: all, domains: ["*"], %s}]}}}]}]}`, name, filter, host)
}

// grpcOptions make a cluster one of gRPC servers.
const grpcOptions = `, typed_extension_protocol_options: {envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {
    "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions,
    explicit_http_config: {http2_protocol_options: {}}}}`

// cluster is a cluster of one server, with more fields in flow style.
func cluster(name, more, addr string) string {
	host, port, _ := net.SplitHostPort(addr)
	return fmt.Sprintf(`{name: %s, load_assignment: {cluster_name: %[1]s, endpoints: [{lb_endpoints: [
  {endpoint: {address: {socket_address: {address: %s, port_value: %s}}}}]}]}%s}`, name, host, port, more)
}

// bootstrap is a configuration of Envoy.
func bootstrap(listeners, clusters []string) string {
	return "static_resources:\n  listeners: [" + strings.Join(listeners, ",\n") + "]\n  clusters: [" +
		strings.Join(clusters, ",\n") + "]\n"
}

// client sends requests over one connection: one worker of Envoy has them all.
type client struct{ proctest.Client }

func newClient(t *testing.T, e *proctest.Envoy, listener string) *client {
	t.Helper()
	transport := &http.Transport{MaxConnsPerHost: 1}
	t.Cleanup(transport.CloseIdleConnections)
	return &client{proctest.Client{
		HTTP: &http.Client{Transport: transport, Timeout: patience}, URL: "http://" + e.Listener(listener),
	}}
}

// get sends a request of a bucket, and reports whether Envoy admitted it.
func (c *client) get(t *testing.T, settings, bucket string) bool {
	t.Helper()
	return c.Get(t, "", "x-settings", settings, "x-bucket", bucket).Status == http.StatusOK
}
