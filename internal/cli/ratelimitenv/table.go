package ratelimitenv

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

	kind kind
}

// Variables returns all variables that envoyproxy/ratelimit reads, those of one subject together.
// docs/migrating/envoyproxy-ratelimit.md says what Weir does with each.
func Variables() []Variable { return table }

var table = []Variable{
	{"HOST", "0.0.0.0", text},
	{"PORT", "8080", port},
	{"DEBUG_HOST", "0.0.0.0", text},
	{"DEBUG_PORT", "6070", port},
	{"GRPC_HOST", "0.0.0.0", text},
	{"GRPC_PORT", "8081", port},
	{"GRPC_UDS", "", text},
	{"GRPC_MAX_CONNECTION_AGE", "24h", duration},
	{"GRPC_MAX_CONNECTION_AGE_GRACE", "1h", duration},
	{"GRPC_SERVER_USE_TLS", "false", boolean},
	{"GRPC_SERVER_TLS_CERT", "", text},
	{"GRPC_SERVER_TLS_KEY", "", text},
	{"GRPC_CLIENT_TLS_CACERT", "", text},
	{"GRPC_CLIENT_TLS_SAN", "", text},
	{"GRPC_SERVER_TLS_CA_CERT", "", text},

	{"LOG_LEVEL", "WARN", text},
	{"LOG_FORMAT", "text", text},

	{"CONFIG_TYPE", "FILE", text},
	{"FORCE_START_WITHOUT_INITIAL_CONFIG", "false", boolean},
	{"CONFIG_GRPC_XDS_NODE_ID", "default", text},
	{"CONFIG_GRPC_XDS_NODE_METADATA", "", text},
	{"CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000", text},
	{"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "3s", duration},
	{"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "", pairs},
	{"CONFIG_GRPC_XDS_SERVER_USE_TLS", "false", boolean},
	{"CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "", text},
	{"CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "", text},
	{"CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "", text},
	{"CONFIG_GRPC_XDS_SERVER_TLS_SAN", "", text},
	{"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10s", duration},
	{"XDS_CLIENT_BACKOFF_MAX_INTERVAL", "60s", duration},
	{"XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "0.5", share},
	{"XDS_CLIENT_BACKOFF_JITTER", "true", boolean},
	{"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "", number},

	{"RUNTIME_ROOT", "/srv/runtime_data/current", text},
	{"RUNTIME_SUBDIRECTORY", "", text},
	{"RUNTIME_APPDIRECTORY", "config", text},
	{"RUNTIME_IGNOREDOTFILES", "false", boolean},
	{"RUNTIME_WATCH_ROOT", "true", boolean},
	{"MERGE_DOMAIN_CONFIG", "false", boolean},

	{"BACKEND_TYPE", "redis", text},
	{"MEMCACHE_HOST_PORT", "", text},
	{"MEMCACHE_MAX_IDLE_CONNS", "2", number},
	{"MEMCACHE_SRV", "", text},
	{"MEMCACHE_SRV_REFRESH", "0", duration},
	{"MEMCACHE_TLS", "false", boolean},
	{"MEMCACHE_TLS_CLIENT_CERT", "", text},
	{"MEMCACHE_TLS_CLIENT_KEY", "", text},
	{"MEMCACHE_TLS_CACERT", "", text},
	{"MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", "false", boolean},

	{"REDIS_SOCKET_TYPE", "unix", text},
	{"REDIS_URL", "/var/run/nutcracker/ratelimit.sock", text},
	{"REDIS_TYPE", "SINGLE", text},
	{"REDIS_AUTH", "", text},
	{"REDIS_SENTINEL_AUTH", "", text},
	{"REDIS_TLS", "false", boolean},
	{"REDIS_TLS_CACERT", "", text},
	{"REDIS_TLS_CLIENT_CERT", "", text},
	{"REDIS_TLS_CLIENT_KEY", "", text},
	{"REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "false", boolean},
	{"REDIS_POOL_SIZE", "10", number},
	{"REDIS_TIMEOUT", "10s", duration},
	{"REDIS_PIPELINE_WINDOW", "0", duration},
	{"REDIS_PIPELINE_LIMIT", "0", number},
	{"REDIS_CLUSTER_PIPELINE_PARALLELISM", "1", number},
	{"REDIS_POOL_ON_EMPTY_BEHAVIOR", "WAIT", text},
	{"REDIS_STARTUP_INITIAL_INTERVAL", "1s", duration},
	{"REDIS_STARTUP_MAX_INTERVAL", "30s", duration},
	{"REDIS_STARTUP_MAX_ELAPSED_TIME", "0", duration},
	{"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "false", boolean},
	{"REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR", "false", boolean},
	{"REDIS_PERSECOND", "false", boolean},
	{"REDIS_PERSECOND_SOCKET_TYPE", "unix", text},
	{"REDIS_PERSECOND_TYPE", "SINGLE", text},
	{"REDIS_PERSECOND_URL", "/var/run/nutcracker/ratelimitpersecond.sock", text},
	{"REDIS_PERSECOND_AUTH", "", text},
	{"REDIS_PERSECOND_SENTINEL_AUTH", "", text},
	{"REDIS_PERSECOND_TLS", "false", boolean},
	{"REDIS_PERSECOND_TIMEOUT", "10s", duration},
	{"REDIS_PERSECOND_POOL_SIZE", "10", number},
	{"REDIS_PERSECOND_PIPELINE_WINDOW", "0", duration},
	{"REDIS_PERSECOND_PIPELINE_LIMIT", "0", number},
	{"REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", "WAIT", text},
	{"CACHE_KEY_PREFIX", "", text},
	{"EXPIRATION_JITTER_MAX_SECONDS", "300", number},
	{"LOCAL_CACHE_SIZE_IN_BYTES", "0", number},

	{"NEAR_LIMIT_RATIO", "0.8", share},
	{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "false", boolean},
	{"SHADOW_MODE", "false", boolean},
	{"QUOTA_MODE", "false", boolean},
	{"RESPONSE_DYNAMIC_METADATA", "false", boolean},
	{"LIMIT_RESPONSE_HEADERS_ENABLED", "false", boolean},
	{"LIMIT_LIMIT_HEADER", "RateLimit-Limit", text},
	{"LIMIT_REMAINING_HEADER", "RateLimit-Remaining", text},
	{"LIMIT_RESET_HEADER", "RateLimit-Reset", text},
	{"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "false", boolean},

	{"USE_STATSD", "true", boolean},
	{"STATSD_HOST", "localhost", text},
	{"STATSD_PORT", "8125", port},
	{"STATSD_PROTOCOL", "tcp", text},
	{"USE_DOG_STATSD", "false", boolean},
	{"USE_DOG_STATSD_MOGRIFIERS", "", text},
	{"EXTRA_TAGS", "", pairs},
	{"STATS_FLUSH_INTERVAL", "10s", duration},
	{"DISABLE_STATS", "false", boolean},
	{"USE_PROMETHEUS", "false", boolean},
	{"PROMETHEUS_ADDR", ":9090", text},
	{"PROMETHEUS_PATH", "/metrics", text},
	{"PROMETHEUS_MAPPER_YAML", "", text},
	{"PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "false", boolean},

	{"TRACING_ENABLED", "false", boolean},
	{"TRACING_EXPORTER_PROTOCOL", "http", text},
	{"TRACING_SERVICE_NAME", "RateLimit", text},
	{"TRACING_SERVICE_NAMESPACE", "", text},
	{"TRACING_SERVICE_INSTANCE_ID", "", text},
	{"TRACING_SAMPLING_RATE", "1", share},
}
