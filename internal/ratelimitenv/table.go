package ratelimitenv

// Action says what becomes of a variable of envoyproxy/ratelimit.
type Action string

// The actions.
const (
	Mapped  Action = "map"    // flags of weir serve have its meaning
	Ignored Action = "ignore" // Weir needs no such setting
	Noted   Action = "note"   // it has no effect here, and the log says so once
	Refused Action = "refuse" // the process does not start, because it would limit otherwise than before
)

// kind is what a variable's value must be.
type kind string

const (
	text     kind = "text"
	boolean  kind = "boolean"
	number   kind = "number"
	port     kind = "port"
	share    kind = "share"
	duration kind = "duration"
	pairs    kind = "pairs"
)

// Variable is one that envoyproxy/ratelimit reads.
type Variable struct {
	Name, Default string
	Action        Action
	// How says in Markdown what the action means.
	How string

	kind kind
}

// Variables returns all variables that envoyproxy/ratelimit reads, those of one subject together.
func Variables() []Variable { return table }

var table = []Variable{
	{"HOST", "0.0.0.0", Mapped, "`--http-addr`", text},
	{"PORT", "8080", Mapped, "`--http-addr`", port},
	{"DEBUG_HOST", "0.0.0.0", Mapped, "`--debug-addr`", text},
	{"DEBUG_PORT", "6070", Mapped, "`--debug-addr`", port},
	{"GRPC_HOST", "0.0.0.0", Mapped, "`--grpc-addr`", text},
	{"GRPC_PORT", "8081", Mapped, "`--grpc-addr`", port},
	{"GRPC_UDS", "", Mapped, "`--grpc-addr unix:PATH`, in place of `GRPC_HOST` and `GRPC_PORT`", text},
	{"GRPC_MAX_CONNECTION_AGE", "24h", Mapped, "`--grpc-max-connection-age`", duration},
	{"GRPC_MAX_CONNECTION_AGE_GRACE", "1h", Noted, "always 30 s", duration},
	{"GRPC_SERVER_USE_TLS", "false", Mapped, "whether the two below count", boolean},
	{"GRPC_SERVER_TLS_CERT", "", Mapped, "`--grpc-tls-cert`", text},
	{"GRPC_SERVER_TLS_KEY", "", Mapped, "`--grpc-tls-key`", text},
	{"GRPC_CLIENT_TLS_CACERT", "", Mapped, "`--grpc-tls-client-ca`; the system's authorities do not count", text},
	{"GRPC_CLIENT_TLS_SAN", "", Mapped, "`--grpc-tls-client-names`", text},
	{
		"GRPC_SERVER_TLS_CA_CERT", "", Noted,
		"Envoy Gateway sets it, envoyproxy/ratelimit does not read it: no client certificate is required", text,
	},

	{"LOG_LEVEL", "WARN", Mapped, "`--log-level`; `trace` is debug, `fatal` and `panic` are error", text},
	{"LOG_FORMAT", "text", Mapped, "`--log-format`", text},

	{"CONFIG_TYPE", "FILE", Mapped, "`FILE`: `--rules` with a directory; `GRPC_XDS_SOTW`: `--rules xds`", text},
	{
		"FORCE_START_WITHOUT_INITIAL_CONFIG", "false", Mapped,
		"`--allow-empty-rules` is always on; false with xDS: `--healthcheck-needs-rules`", boolean,
	},
	{"CONFIG_GRPC_XDS_NODE_ID", "default", Mapped, "`--xds-node-id`", text},
	{"CONFIG_GRPC_XDS_NODE_METADATA", "", Mapped, "`--xds-node-metadata`", text},
	{"CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000", Mapped, "`--xds-server`", text},
	{"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "3s", Ignored, "Weir connects again after 1 s to 60 s", duration},
	{"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "", Mapped, "`--xds-header`", pairs},
	{"CONFIG_GRPC_XDS_SERVER_USE_TLS", "false", Mapped, "`--xds-tls`", boolean},
	{"CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "", Mapped, "`--xds-tls-cert`", text},
	{"CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "", Mapped, "`--xds-tls-key`", text},
	{"CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "", Mapped, "`--xds-tls-ca`", text},
	{"CONFIG_GRPC_XDS_SERVER_TLS_SAN", "", Mapped, "`--xds-tls-server-name`", text},
	{"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10s", Ignored, "Weir connects again after 1 s to 60 s", duration},
	{"XDS_CLIENT_BACKOFF_MAX_INTERVAL", "60s", Ignored, "the same", duration},
	{"XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "0.5", Ignored, "the same", share},
	{"XDS_CLIENT_BACKOFF_JITTER", "true", Ignored, "the same", boolean},
	{"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "", Mapped, "`--xds-max-message-size`", number},

	{"RUNTIME_ROOT", "/srv/runtime_data/current", Mapped, "`--rules`", text},
	{"RUNTIME_SUBDIRECTORY", "", Mapped, "`--rules`", text},
	{"RUNTIME_APPDIRECTORY", "config", Mapped, "`--rules`, or `--rules-prefix` with `RUNTIME_WATCH_ROOT`", text},
	{"RUNTIME_IGNOREDOTFILES", "false", Ignored, "names that begin with a dot are never read", boolean},
	{"RUNTIME_WATCH_ROOT", "true", Mapped, "which files are read; Weir always watches all of them", boolean},
	{"MERGE_DOMAIN_CONFIG", "false", Ignored, "files of one domain are always merged", boolean},

	{"BACKEND_TYPE", "redis", Refused, "`memcache` is refused: Weir has no such store", text},
	{"MEMCACHE_HOST_PORT", "", Ignored, "counts with `BACKEND_TYPE=memcache` only", text},
	{"MEMCACHE_MAX_IDLE_CONNS", "2", Ignored, "the same", number},
	{"MEMCACHE_SRV", "", Ignored, "the same", text},
	{"MEMCACHE_SRV_REFRESH", "0", Ignored, "the same", duration},
	{"MEMCACHE_TLS", "false", Ignored, "the same", boolean},
	{"MEMCACHE_TLS_CLIENT_CERT", "", Ignored, "the same", text},
	{"MEMCACHE_TLS_CLIENT_KEY", "", Ignored, "the same", text},
	{"MEMCACHE_TLS_CACERT", "", Ignored, "the same", text},
	{"MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", "false", Ignored, "the same", boolean},

	{"REDIS_SOCKET_TYPE", "unix", Mapped, "`--store`", text},
	{"REDIS_URL", "/var/run/nutcracker/ratelimit.sock", Mapped, "`--store`", text},
	{"REDIS_TYPE", "SINGLE", Mapped, "`--store redis://`, `redis+sentinel://` or `redis+cluster://`", text},
	{"REDIS_AUTH", "", Mapped, "user and password of `--store`", text},
	{"REDIS_SENTINEL_AUTH", "", Mapped, "`sentinel_username` and `sentinel_password` of `--store`", text},
	{"REDIS_TLS", "false", Mapped, "`--store rediss://`", boolean},
	{"REDIS_TLS_CACERT", "", Mapped, "`tls_ca` of `--store`; the system's authorities do not count", text},
	{"REDIS_TLS_CLIENT_CERT", "", Mapped, "`tls_cert` of `--store`", text},
	{"REDIS_TLS_CLIENT_KEY", "", Mapped, "`tls_key` of `--store`", text},
	{"REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "false", Mapped, "`tls_skip_hostname` of `--store`", boolean},
	{"REDIS_POOL_SIZE", "10", Ignored, "requests share calls: the default of `--store-pool-size` is enough", number},
	{"REDIS_TIMEOUT", "10s", Mapped, "`--store-timeout`; unless it is set, the time that the caller waits", duration},
	{"REDIS_PIPELINE_WINDOW", "0", Ignored, "requests share calls by themselves", duration},
	{"REDIS_PIPELINE_LIMIT", "0", Ignored, "the same", number},
	{"REDIS_CLUSTER_PIPELINE_PARALLELISM", "1", Ignored, "the same", number},
	{"REDIS_POOL_ON_EMPTY_BEHAVIOR", "WAIT", Ignored, "the same", text},
	{"REDIS_STARTUP_INITIAL_INTERVAL", "1s", Ignored, "Weir starts without Redis, and asks it from then on", duration},
	{"REDIS_STARTUP_MAX_INTERVAL", "30s", Ignored, "the same", duration},
	{"REDIS_STARTUP_MAX_ELAPSED_TIME", "0", Ignored, "the same", duration},
	{"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "false", Ignored, "`GET /readyz` says whether Redis answers", boolean},
	{"REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR", "false", Ignored, "always so", boolean},
	{"REDIS_PERSECOND", "false", Mapped, "`--per-second-store`", boolean},
	{"REDIS_PERSECOND_SOCKET_TYPE", "unix", Mapped, "`--per-second-store`", text},
	{"REDIS_PERSECOND_TYPE", "SINGLE", Mapped, "`--per-second-store`", text},
	{"REDIS_PERSECOND_URL", "/var/run/nutcracker/ratelimitpersecond.sock", Mapped, "`--per-second-store`", text},
	{"REDIS_PERSECOND_AUTH", "", Mapped, "`--per-second-store`", text},
	{"REDIS_PERSECOND_SENTINEL_AUTH", "", Mapped, "`--per-second-store`", text},
	{"REDIS_PERSECOND_TLS", "false", Mapped, "`--per-second-store`, with the certificates of `REDIS_TLS_*`", boolean},
	{"REDIS_PERSECOND_TIMEOUT", "10s", Mapped, "`timeout` of `--per-second-store`", duration},
	{"REDIS_PERSECOND_POOL_SIZE", "10", Ignored, "as `REDIS_POOL_SIZE`", number},
	{"REDIS_PERSECOND_PIPELINE_WINDOW", "0", Ignored, "as `REDIS_PIPELINE_WINDOW`", duration},
	{"REDIS_PERSECOND_PIPELINE_LIMIT", "0", Ignored, "as `REDIS_PIPELINE_WINDOW`", number},
	{"REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", "WAIT", Ignored, "as `REDIS_PIPELINE_WINDOW`", text},
	{"CACHE_KEY_PREFIX", "", Mapped, "appended to `--store-key-prefix weir:`", text},
	{"EXPIRATION_JITTER_MAX_SECONDS", "300", Ignored, "keys end with their windows", number},
	{"LOCAL_CACHE_SIZE_IN_BYTES", "0", Ignored, "`--known-denials` is on, and needs no size", number},

	{"NEAR_LIMIT_RATIO", "0.8", Mapped, "`--near-limit-ratio`", share},
	{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "false", Mapped, "`--charge-each` unless true", boolean},
	{"SHADOW_MODE", "false", Mapped, "`--shadow-mode`", boolean},
	{"QUOTA_MODE", "false", Mapped, "`--quota-mode`", boolean},
	{"RESPONSE_DYNAMIC_METADATA", "false", Mapped, "`--dynamic-metadata`", boolean},
	{"LIMIT_RESPONSE_HEADERS_ENABLED", "false", Mapped, "`--ratelimit-headers`", boolean},
	{"LIMIT_LIMIT_HEADER", "RateLimit-Limit", Mapped, "`--ratelimit-limit-header`", text},
	{"LIMIT_REMAINING_HEADER", "RateLimit-Remaining", Mapped, "`--ratelimit-remaining-header`", text},
	{"LIMIT_RESET_HEADER", "RateLimit-Reset", Mapped, "`--ratelimit-reset-header`", text},
	{"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "false", Mapped, "`--healthcheck-needs-rules`", boolean},

	{"USE_STATSD", "true", Mapped, "`--statsd-addr tcp://HOST:PORT` with `--classic-metrics`", boolean},
	{"STATSD_HOST", "localhost", Mapped, "`--statsd-addr`", text},
	{"STATSD_PORT", "8125", Mapped, "`--statsd-addr`", port},
	{"STATSD_PROTOCOL", "tcp", Mapped, "`--statsd-addr`", text},
	{"USE_DOG_STATSD", "false", Mapped, "`--statsd-format dogstatsd`, over UDP", boolean},
	{"USE_DOG_STATSD_MOGRIFIERS", "", Noted, "labels are tags already", text},
	{"EXTRA_TAGS", "", Mapped, "`--statsd-tag` with `USE_DOG_STATSD`; else a line in the log", pairs},
	{"STATS_FLUSH_INTERVAL", "10s", Mapped, "`--statsd-interval`", duration},
	{"DISABLE_STATS", "false", Mapped, "neither statsd nor `--classic-metrics`", boolean},
	{"USE_PROMETHEUS", "false", Mapped, "`--metrics-addr` with `--classic-metrics`", boolean},
	{"PROMETHEUS_ADDR", ":9090", Mapped, "`--metrics-addr`", text},
	{"PROMETHEUS_PATH", "/metrics", Mapped, "`--metrics-path`", text},
	{"PROMETHEUS_MAPPER_YAML", "", Noted, "names are those of the mapping that envoyproxy/ratelimit brings along", text},
	{"PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "false", Noted, "times are in seconds", boolean},

	{"TRACING_ENABLED", "false", Mapped, "`--otel-traces`", boolean},
	{"TRACING_EXPORTER_PROTOCOL", "http", Mapped, "`--otel-protocol`", text},
	{"TRACING_SERVICE_NAME", "RateLimit", Mapped, "`OTEL_SERVICE_NAME`, unless that is set", text},
	{"TRACING_SERVICE_NAMESPACE", "", Mapped, "`service.namespace` in `OTEL_RESOURCE_ATTRIBUTES`", text},
	{"TRACING_SERVICE_INSTANCE_ID", "", Mapped, "`service.instance.id` in `OTEL_RESOURCE_ATTRIBUTES`", text},
	{"TRACING_SAMPLING_RATE", "1", Mapped, "`OTEL_TRACES_SAMPLER=parentbased_traceidratio`, unless that is set", share},
}
