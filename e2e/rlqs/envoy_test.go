//go:build e2e

package rlqs

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/envoytest"
)

// settings are the bucket settings that a request chooses by the header x-settings: no_assignment_behavior,
// expired_assignment_behavior and deny_response_settings in flow style. All have a reporting_interval of 1 s.
var settings = map[string]string{
	"allow": "", "tenant": "", "preview": "",
	"deny": `no_assignment_behavior: {fallback_rate_limit: {blanket_rule: DENY_ALL}}`,
	"fallback": `expired_assignment_behavior: {fallback_rate_limit: {blanket_rule: DENY_ALL},
  expired_assignment_behavior_timeout: 2.9s}`,
	"fallback-without-timeout": `expired_assignment_behavior: {fallback_rate_limit: {blanket_rule: DENY_ALL}}`,
	"fallback-bucket": `expired_assignment_behavior: {expired_assignment_behavior_timeout: 3600s, fallback_rate_limit: {
  token_bucket: {max_tokens: 3, tokens_per_fill: 1, fill_interval: 3600s}}}`,
	"reuse": `expired_assignment_behavior: {reuse_last_assignment: {}, expired_assignment_behavior_timeout: 3600s},
  no_assignment_behavior: {fallback_rate_limit: {blanket_rule: DENY_ALL}}`,
	"response": `no_assignment_behavior: {fallback_rate_limit: {blanket_rule: DENY_ALL}}, deny_response_settings: {
  http_status: {code: ServiceUnavailable}, http_body: {value: bGF0ZXI=},
  response_headers_to_add: [{header: {key: x-limit, value: quota}}]}`,
	"bucket": `no_assignment_behavior: {fallback_rate_limit: {
  token_bucket: {max_tokens: 3, tokens_per_fill: 1, fill_interval: 3600s}}}`,
}

// headerInput reads a request header.
func headerInput(name string) string {
	return `{name: ` + name + `, typed_config: {
  "@type": type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput, header_name: ` + name + `}}`
}

// bucketAction counts requests in a bucket of the header x-bucket; "tenant" also of x-tenant.
func bucketAction(name string) string {
	more, id := settings[name], `bucket: {custom_value: `+headerInput("x-bucket")+`}`
	if more != "" {
		more = ", " + more
	}
	if name == "tenant" {
		id += `, tenant: {custom_value: ` + headerInput("x-tenant") + `}`
	}
	return `{name: quota, typed_config: {
  "@type": type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaBucketSettings,
  bucket_id_builder: {bucket_id_builder: {` + id + `}},
  reporting_interval: 1s` + more + `}}`
}

// Fields of the filter and of a route that should switch it off, or have it count in another domain.
const (
	switchedOff = `filter_enabled: {default_value: {numerator: 0}, runtime_key: quota.enabled},
        filter_enforced: {default_value: {numerator: 0}, runtime_key: quota.enforced}, `
	otherDomain = `, typed_per_filter_config: {envoy.filters.http.rate_limit_quota: {
        "@type": type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaOverride,
        domain: other}}`
)

// quotaListener is a listener whose requests are counted in a domain, by the server behind a cluster. filter and route
// are more fields of these in flow style.
func quotaListener(name, domain, cluster, filter, route string) string {
	var bySettings []string
	for _, n := range slices.Sorted(maps.Keys(settings)) {
		more := ""
		if n == "preview" {
			more = ", keep_matching: true"
		}
		bySettings = append(bySettings, n+": {action: "+bucketAction(n)+more+"}")
	}
	return fmt.Sprintf(`{name: %s, address: {socket_address: {address: 127.0.0.1, port_value: 0}}, filter_chains: [{filters: [
  {name: envoy.filters.network.http_connection_manager, typed_config: {
    "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager,
    stat_prefix: %[1]s,
    access_log: [{name: stdout,
      filter: {header_filter: {header: {name: x-log, present_match: true}}},
      typed_config: {"@type": type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog,
        log_format: {text_format_source: {inline_string: "denied %%REQ(x-bucket)%% %%RESPONSE_FLAGS%% %%RESPONSE_CODE_DETAILS%% %%DYNAMIC_METADATA(envoy.extensions.http_filters.rate_limit_quota.bucket)%%\n"}}}}],
    http_filters: [
      {name: envoy.filters.http.rate_limit_quota, typed_config: {
        "@type": type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaFilterConfig,
        rlqs_server: {envoy_grpc: {cluster_name: %[3]s}, initial_metadata: [{key: x-weir-node, value: node-7}]},
        domain: %[2]s, %[6]s
        bucket_matchers: {matcher_tree: {input: %[4]s, exact_match_map: {map: {%[5]s}}}}}},
      {name: envoy.filters.http.router,
        typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}],
    route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [
      {match: {prefix: /}, direct_response: {status: 200}%[7]s}]}]}}}]}]}`,
		name, domain, cluster, headerInput("x-settings"), strings.Join(bySettings, ",\n"), filter, route)
}

// grpcOptions make a cluster one of gRPC servers.
const grpcOptions = `, typed_extension_protocol_options: {envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {
    "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions,
    explicit_http_config: {http2_protocol_options: {}}}}`

// cluster is a cluster of servers, with more fields in flow style.
func cluster(name, more string, addrs ...string) string {
	var endpoints []string
	for _, addr := range addrs {
		host, port, _ := net.SplitHostPort(addr)
		endpoints = append(endpoints,
			fmt.Sprintf(`{endpoint: {address: {socket_address: {address: %s, port_value: %s}}}}`, host, port))
	}
	return fmt.Sprintf(`{name: %s, load_assignment: {cluster_name: %[1]s, endpoints: [{lb_endpoints: [%s]}]}%s}`, name,
		strings.Join(endpoints, ", "), more)
}

// bootstrap is a configuration of Envoy.
func bootstrap(listeners, clusters []string) string {
	return "static_resources:\n  listeners: [" + strings.Join(listeners, ",\n") + "]\n  clusters: [" +
		strings.Join(clusters, ",\n") + "]\n"
}

// client sends requests over one connection: one worker of Envoy has them all.
type client struct{ envoytest.Client }

func newClient(t *testing.T, e *envoytest.Envoy, listener string) *client {
	t.Helper()
	transport := &http.Transport{MaxConnsPerHost: 1}
	t.Cleanup(transport.CloseIdleConnections)
	return &client{envoytest.Client{
		HTTP: &http.Client{Transport: transport, Timeout: patience}, URL: "http://" + e.Listener(listener),
	}}
}

// try sends a request with headers, which are given as name and value in turn.
func (c *client) try(t *testing.T, headers ...string) (envoytest.Response, error) {
	t.Helper()
	return c.Try(t, "", headers...)
}

// get is try, and an error fails the test.
func (c *client) get(t *testing.T, headers ...string) envoytest.Response {
	t.Helper()
	return c.Get(t, "", headers...)
}
