package ratelimitenv

import (
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

func (r *reader) listen() {
	addr := func(host, port string) string {
		return net.JoinHostPort(strings.Trim(r.get(host), "[]"), r.port(port))
	}
	r.flag("http-addr", addr("HOST", "PORT"), "HOST", "PORT")
	r.flag("debug-addr", addr("DEBUG_HOST", "DEBUG_PORT"), "DEBUG_HOST", "DEBUG_PORT")
	if r.isSet("GRPC_UDS") {
		r.flag("grpc-addr", "unix:"+r.get("GRPC_UDS"), "GRPC_UDS")
	} else {
		r.flag("grpc-addr", addr("GRPC_HOST", "GRPC_PORT"), "GRPC_HOST", "GRPC_PORT")
	}
	r.flag("grpc-max-connection-age", r.get("GRPC_MAX_CONNECTION_AGE"), "GRPC_MAX_CONNECTION_AGE")
	if r.isSet("GRPC_MAX_CONNECTION_AGE_GRACE") {
		r.remark("GRPC_MAX_CONNECTION_AGE_GRACE", "has no effect: after its maximum age, a connection always has 30s "+
			"for its requests in flight")
	}
	if r.is("GRPC_SERVER_USE_TLS") {
		r.copied("grpc-tls-cert", "GRPC_SERVER_TLS_CERT")
		r.copied("grpc-tls-key", "GRPC_SERVER_TLS_KEY")
		if !r.isSet("GRPC_SERVER_TLS_CERT") || !r.isSet("GRPC_SERVER_TLS_KEY") {
			r.fail("GRPC_SERVER_USE_TLS", "needs GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY")
		}
		r.copied("grpc-tls-client-ca", "GRPC_CLIENT_TLS_CACERT")
		if r.isSet("GRPC_CLIENT_TLS_CACERT") && r.isSet("GRPC_CLIENT_TLS_SAN") {
			r.flag("grpc-tls-client-names", escaped(r.get("GRPC_CLIENT_TLS_SAN"), ","), "GRPC_CLIENT_TLS_SAN")
		}
	}
	if r.isSet("GRPC_SERVER_TLS_CA_CERT") {
		r.remark("GRPC_SERVER_TLS_CA_CERT", "has no effect, as in envoyproxy/ratelimit: no client certificate is required; "+
			"GRPC_CLIENT_TLS_CACERT would require one")
	}
	r.log()
}

// levels maps the levels of logrus to Weir's.
var levels = map[string]string{
	"trace": "debug", "debug": "debug", "info": "info", "warn": "warn", "warning": "warn",
	"error": "error", "fatal": "error", "panic": "error",
}

func (r *reader) log() {
	level, ok := levels[strings.ToLower(r.get("LOG_LEVEL"))]
	if !ok {
		r.fail("LOG_LEVEL", "must be trace, debug, info, warn, error, fatal or panic, got %q", r.get("LOG_LEVEL"))
		return
	}
	r.flag("log-level", level, "LOG_LEVEL")
	format := "text"
	if strings.EqualFold(r.get("LOG_FORMAT"), "json") {
		format = "json"
	}
	r.flag("log-format", format, "LOG_FORMAT")
}

func (r *reader) rules() {
	r.on("healthcheck-needs-rules", "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED")
	switch config := r.get("CONFIG_TYPE"); config {
	case "FILE":
		r.files()
	case "GRPC_XDS_SOTW":
		r.xds()
		if !r.is("FORCE_START_WITHOUT_INITIAL_CONFIG") {
			r.flag("healthcheck-needs-load", "true", "FORCE_START_WITHOUT_INITIAL_CONFIG")
		}
	default:
		r.fail("CONFIG_TYPE", "must be FILE or GRPC_XDS_SOTW, got %q", config)
	}
	r.flag("allow-empty-rules", "true", "FORCE_START_WITHOUT_INITIAL_CONFIG")
	r.flag("lenient-rules", "true")
}

// files adds the flags for the rule files that envoyproxy/ratelimit would load.
func (r *reader) files() {
	const root, sub, app = "RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY"
	dir := filepath.Join(r.get(root), r.get(sub))
	if r.is("RUNTIME_WATCH_ROOT") {
		r.flag("rules-prefix", r.get(app), app, "RUNTIME_WATCH_ROOT")
		if !r.isSet(sub) {
			r.remark(sub, "is empty, so envoyproxy/ratelimit would read no rules; Weir reads the rules below %s",
				filepath.Join(dir, r.get(app)))
		}
	} else {
		dir = filepath.Join(dir, r.get(app))
	}
	if !filepath.IsAbs(dir) {
		dir = "./" + dir // so that a directory named store is not taken for the store
	}
	r.flag("rules", escaped(dir, ","), root, sub, app, "RUNTIME_WATCH_ROOT")
	r.flag("rules-every-file", "true")
}

func (r *reader) xds() {
	r.flag("rules", "xds", "CONFIG_TYPE")
	server := r.get("CONFIG_GRPC_XDS_SERVER_URL")
	for _, scheme := range []string{"dns:///", "passthrough:///"} {
		server = strings.TrimPrefix(server, scheme)
	}
	r.flag("xds-server", server, "CONFIG_GRPC_XDS_SERVER_URL")
	r.flag("xds-node-id", r.get("CONFIG_GRPC_XDS_NODE_ID"), "CONFIG_GRPC_XDS_NODE_ID")
	const metadata, headers = "CONFIG_GRPC_XDS_NODE_METADATA", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS"
	for _, p := range r.pairs(metadata) {
		r.flag("xds-node-metadata", p[0]+"="+escaped(p[1], ";"), metadata)
	}
	for _, p := range r.pairs(headers) {
		r.secret("xds-header", p[0]+"="+escaped(p[1], ";"), p[0]+"="+placeholder, headers)
	}
	if r.is("CONFIG_GRPC_XDS_SERVER_USE_TLS") {
		r.flag("xds-tls", "true", "CONFIG_GRPC_XDS_SERVER_USE_TLS")
		r.copied("xds-tls-cert", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT")
		r.copied("xds-tls-key", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY")
		r.copied("xds-tls-ca", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT")
		r.copied("xds-tls-server-name", "CONFIG_GRPC_XDS_SERVER_TLS_SAN")
	}
	if n := r.number("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES"); n > 0 {
		r.flag("max-rules-size", strconv.FormatInt(n, 10), "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES")
	}
}

func (r *reader) decisions() {
	r.copied("near-limit-ratio", "NEAR_LIMIT_RATIO")
	const stop, cache = "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "LOCAL_CACHE_SIZE_IN_BYTES"
	if !r.is(stop) {
		r.flag("charge-each", "true", stop)
	}
	if r.number(cache) > 0 {
		r.flag("uncharged-denials", "true", cache)
	}
	r.on("shadow-mode", "SHADOW_MODE")
	r.on("quota-mode", "QUOTA_MODE")
	r.on("dynamic-metadata", "RESPONSE_DYNAMIC_METADATA")
	if r.is("LIMIT_RESPONSE_HEADERS_ENABLED") {
		r.flag("ratelimit-headers", "true", "LIMIT_RESPONSE_HEADERS_ENABLED")
		r.copied("ratelimit-limit-header", "LIMIT_LIMIT_HEADER")
		r.copied("ratelimit-remaining-header", "LIMIT_REMAINING_HEADER")
		r.copied("ratelimit-reset-header", "LIMIT_RESET_HEADER")
	}
}

// fixed adds the flags for behaviour of envoyproxy/ratelimit that has no variable.
func (r *reader) fixed() {
	r.flag("on-store-failure", "error")
	r.flag("allow-peek-at-limit", "true")
	r.flag("retry-after", "false")
	r.flag("http-json", "true")
	// The maximum that Envoy Gateway can make Envoy send: 256 rules of 8 selectors with 144 entries each.
	r.flag("max-descriptors", "2048")
	r.flag("max-counters", "8192")
}

func (r *reader) metrics() {
	if r.isSet("USE_DOG_STATSD_MOGRIFIERS") {
		r.remark("USE_DOG_STATSD_MOGRIFIERS", "has no effect: Weir already sends these parts of names as tags")
	}
	if r.is("DISABLE_STATS") {
		return
	}
	classic := []string{"USE_STATSD", "USE_DOG_STATSD", "USE_PROMETHEUS"}
	if r.is(classic[0]) || r.is(classic[1]) || r.is(classic[2]) {
		r.flag("classic-metrics", "true", classic...)
	}
	r.statsd()
	if r.is("USE_PROMETHEUS") {
		r.flag("metrics-addr", r.get("PROMETHEUS_ADDR"), "PROMETHEUS_ADDR", "USE_PROMETHEUS")
		r.copied("metrics-path", "PROMETHEUS_PATH")
		if r.isSet("PROMETHEUS_MAPPER_YAML") {
			r.remark("PROMETHEUS_MAPPER_YAML", "has no effect: names and labels follow the mapping that is "+
				"part of envoyproxy/ratelimit")
		}
		if r.is("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS") {
			r.remark("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "has no effect: ratelimit_service_response_time_seconds "+
				"is in seconds")
		}
	}
}

func (r *reader) statsd() {
	dog := r.is("USE_DOG_STATSD")
	if !dog && !r.is("USE_STATSD") {
		return
	}
	protocol := strings.ToLower(r.get("STATSD_PROTOCOL"))
	if dog {
		protocol = "udp"
		r.flag("statsd-format", "dogstatsd", "USE_DOG_STATSD")
	}
	r.flag("statsd-addr", protocol+"://"+net.JoinHostPort(r.get("STATSD_HOST"), r.port("STATSD_PORT")),
		"USE_STATSD", "USE_DOG_STATSD", "STATSD_HOST", "STATSD_PORT", "STATSD_PROTOCOL")
	interval := max(time.Second, min(r.time("STATS_FLUSH_INTERVAL"), time.Hour))
	if interval != r.time("STATS_FLUSH_INTERVAL") {
		r.remark("STATS_FLUSH_INTERVAL", "is %s in Weir: the minimum is 1s, the maximum 1h", interval)
	}
	if r.isSet("STATS_FLUSH_INTERVAL") {
		r.flag("statsd-interval", interval.String(), "STATS_FLUSH_INTERVAL")
	}
	if !r.isSet("EXTRA_TAGS") {
		return
	}
	if !dog {
		r.remark("EXTRA_TAGS", "has no effect: statsd has no tags; set USE_DOG_STATSD=true for tags")
		return
	}
	for _, tag := range r.pairs("EXTRA_TAGS") {
		r.flag("statsd-tag", tag[0]+":"+tag[1], "EXTRA_TAGS")
	}
}

func (r *reader) tracing() {
	if !r.is("TRACING_ENABLED") {
		return
	}
	r.flag("otel-traces", "true", "TRACING_ENABLED")
	r.flag("otel-protocol", strings.ToLower(r.get("TRACING_EXPORTER_PROTOCOL")), "TRACING_EXPORTER_PROTOCOL")
	r.otel("OTEL_SERVICE_NAME", r.get("TRACING_SERVICE_NAME"), "TRACING_SERVICE_NAME")
	r.attributes()
	rate, err := strconv.ParseFloat(r.get("TRACING_SAMPLING_RATE"), 64)
	if err != nil || !(rate >= 0) {
		r.fail("TRACING_SAMPLING_RATE", "must be a fraction from 0 to 1, got %q", r.get("TRACING_SAMPLING_RATE"))
		return
	}
	if !r.isSet("OTEL_TRACES_SAMPLER") {
		r.otel("OTEL_TRACES_SAMPLER", "parentbased_traceidratio", "TRACING_SAMPLING_RATE")
		r.otel("OTEL_TRACES_SAMPLER_ARG", strconv.FormatFloat(min(rate, 1), 'g', -1, 64), "TRACING_SAMPLING_RATE")
	}
}

// attributes adds missing attributes to OTEL_RESOURCE_ATTRIBUTES.
func (r *reader) attributes() {
	const (
		resource  = "OTEL_RESOURCE_ATTRIBUTES"
		namespace = "TRACING_SERVICE_NAMESPACE"
		instance  = "TRACING_SERVICE_INSTANCE_ID"
	)
	all := r.env[resource]
	for _, a := range [][2]string{{"service.namespace", namespace}, {"service.instance.id", instance}} {
		if !r.isSet(a[1]) || strings.Contains(all, a[0]+"=") {
			continue
		}
		if all != "" {
			all += ","
		}
		all += a[0] + "=" + url.PathEscape(r.get(a[1]))
	}
	if all != r.env[resource] {
		delete(r.env, resource) // so that otel replaces it
		r.otel(resource, all, namespace, instance)
	}
}
