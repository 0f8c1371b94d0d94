package ratelimitenv

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// cases has a case for every variable of the table: an environment without the variable, and its value.
var cases = map[string]struct {
	beside string // other variables, separated by blanks
	value  string
	// want is a flag, or a variable of OpenTelemetry, that the value leads to. It is empty for what is not mapped.
	want string
	// refused is what the error says of another value.
	refusedValue, refused string
}{
	"HOST":       {value: "::", want: "http-addr=[::]:8080"},
	"PORT":       {value: "80", want: "http-addr=0.0.0.0:80", refusedValue: "http", refused: "a port"},
	"DEBUG_HOST": {value: "127.0.0.1", want: "debug-addr=127.0.0.1:6070"},
	"DEBUG_PORT": {
		value: "7000", want: "debug-addr=0.0.0.0:7000", refusedValue: "0",
		refused: "a port",
	},
	"GRPC_HOST": {value: "::", want: "grpc-addr=[::]:8081"},
	"GRPC_PORT": {
		value: "0x1f92", want: "grpc-addr=0.0.0.0:8082", refusedValue: "99999",
		refused: "a port",
	},
	"GRPC_UDS": {value: "/run/rl.sock", want: "grpc-addr=unix:/run/rl.sock"},
	"GRPC_MAX_CONNECTION_AGE": {
		value: "1h", want: "grpc-max-connection-age=1h", refusedValue: "1",
		refused: "a time",
	},
	"GRPC_MAX_CONNECTION_AGE_GRACE": {value: "1m", refusedValue: "x", refused: "a time"},
	"GRPC_SERVER_USE_TLS": {
		beside: "GRPC_SERVER_TLS_CERT=/c GRPC_SERVER_TLS_KEY=/k", value: "true", want: "grpc-tls-cert=/c",
		refusedValue: "yes", refused: `must be true or false, got "yes"`,
	},
	"GRPC_SERVER_TLS_CERT": {
		beside: "GRPC_SERVER_USE_TLS=true GRPC_SERVER_TLS_KEY=/k GRPC_SERVER_TLS_CERT=/c",
		value:  "/d", want: "grpc-tls-cert=/d",
	},
	"GRPC_SERVER_TLS_KEY": {
		beside: "GRPC_SERVER_USE_TLS=true GRPC_SERVER_TLS_CERT=/c GRPC_SERVER_TLS_KEY=/k",
		value:  "/d", want: "grpc-tls-key=/d",
	},
	"GRPC_CLIENT_TLS_CACERT": {
		beside: "GRPC_SERVER_USE_TLS=true GRPC_SERVER_TLS_CERT=/c GRPC_SERVER_TLS_KEY=/k",
		value:  "/ca", want: "grpc-tls-client-ca=/ca",
	},
	"GRPC_CLIENT_TLS_SAN": {beside: "GRPC_SERVER_USE_TLS=1 GRPC_SERVER_TLS_CERT=/c GRPC_SERVER_TLS_KEY=/k " +
		"GRPC_CLIENT_TLS_CACERT=/ca", value: "envoy", want: "grpc-tls-client-names=envoy"},
	"GRPC_SERVER_TLS_CA_CERT": {
		beside: "GRPC_SERVER_USE_TLS=1 GRPC_SERVER_TLS_CERT=/c GRPC_SERVER_TLS_KEY=/k",
		value:  "/ca",
	},

	"LOG_LEVEL":  {value: "Trace", want: "log-level=debug", refusedValue: "loud", refused: "must be trace, debug"},
	"LOG_FORMAT": {value: "JSON", want: "log-format=json"},

	"CONFIG_TYPE": {
		value: "GRPC_XDS_SOTW", want: "rules=xds", refusedValue: "XDS",
		refused: "must be FILE or GRPC_XDS_SOTW",
	},
	"FORCE_START_WITHOUT_INITIAL_CONFIG": {
		beside: "CONFIG_TYPE=GRPC_XDS_SOTW", value: "true",
		want: "allow-empty-rules=true", refusedValue: "y", refused: "true or false",
	},
	"CONFIG_GRPC_XDS_NODE_ID": {
		beside: "CONFIG_TYPE=GRPC_XDS_SOTW", value: "a",
		want: "xds-node-id=a",
	},
	"CONFIG_GRPC_XDS_NODE_METADATA": {
		beside: "CONFIG_TYPE=GRPC_XDS_SOTW", value: "a=b,c=d;e",
		want: `xds-node-metadata=c=d\;e`,
	},
	"CONFIG_GRPC_XDS_SERVER_URL": {
		beside: "CONFIG_TYPE=GRPC_XDS_SOTW", value: "dns:///eg:18001",
		want: "xds-server=eg:18001",
	},
	"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL": {
		beside: "CONFIG_TYPE=GRPC_XDS_SOTW", value: "9s", refusedValue: "9",
		refused: "a time",
	},
	"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS": {
		beside: "CONFIG_TYPE=GRPC_XDS_SOTW", value: "token:a=b",
		want: "xds-header=token=a=b", refusedValue: "x", refused: "must be key:value",
	},
	"CONFIG_GRPC_XDS_SERVER_USE_TLS": {
		beside: "CONFIG_TYPE=GRPC_XDS_SOTW", value: "true",
		want: "xds-tls=true", refusedValue: "-", refused: "true or false",
	},
	"CONFIG_GRPC_XDS_CLIENT_TLS_CERT": {
		beside: "CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_USE_TLS=1",
		value:  "/c", want: "xds-tls-cert=/c",
	},
	"CONFIG_GRPC_XDS_CLIENT_TLS_KEY": {
		beside: "CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_USE_TLS=1",
		value:  "/k", want: "xds-tls-key=/k",
	},
	"CONFIG_GRPC_XDS_SERVER_TLS_CACERT": {
		beside: "CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_USE_TLS=1",
		value:  "/ca", want: "xds-tls-ca=/ca",
	},
	"CONFIG_GRPC_XDS_SERVER_TLS_SAN": {
		beside: "CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_USE_TLS=1",
		value:  "eg", want: "xds-tls-server-name=eg",
	},
	"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL": {
		beside: "CONFIG_TYPE=GRPC_XDS_SOTW", value: "1s", refusedValue: "1",
		refused: "a time",
	},
	"XDS_CLIENT_BACKOFF_MAX_INTERVAL": {
		beside: "CONFIG_TYPE=GRPC_XDS_SOTW", value: "1s", refusedValue: "1",
		refused: "a time",
	},
	"XDS_CLIENT_BACKOFF_RANDOM_FACTOR": {
		beside: "CONFIG_TYPE=GRPC_XDS_SOTW", value: "0.1", refusedValue: "a",
		refused: "a number",
	},
	"XDS_CLIENT_BACKOFF_JITTER": {
		beside: "CONFIG_TYPE=GRPC_XDS_SOTW", value: "false",
		refusedValue: "a", refused: "true or false",
	},
	"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES": {
		beside: "CONFIG_TYPE=GRPC_XDS_SOTW", value: "1000000",
		want: "xds-max-message-size=1000000", refusedValue: "1M", refused: "a whole number",
	},

	"RUNTIME_ROOT":           {value: "/data", want: "rules=/data"},
	"RUNTIME_SUBDIRECTORY":   {beside: "RUNTIME_ROOT=/data", value: "ratelimit", want: "rules=/data/ratelimit"},
	"RUNTIME_APPDIRECTORY":   {value: "limits", want: "rules-prefix=limits"},
	"RUNTIME_IGNOREDOTFILES": {value: "true", refusedValue: "a", refused: "true or false"},
	"RUNTIME_WATCH_ROOT": {
		beside: "RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit", value: "false",
		want: "rules=/data/ratelimit/config", refusedValue: "a", refused: "true or false",
	},
	"MERGE_DOMAIN_CONFIG": {value: "true", refusedValue: "a", refused: "true or false"},

	"BACKEND_TYPE":             {refusedValue: "memcache", refused: "keeps no counters in memcached"},
	"MEMCACHE_HOST_PORT":       {value: "memcached:11211"},
	"MEMCACHE_MAX_IDLE_CONNS":  {value: "3", refusedValue: "a", refused: "a whole number"},
	"MEMCACHE_SRV":             {value: "_memcache._tcp.mem"},
	"MEMCACHE_SRV_REFRESH":     {value: "1s", refusedValue: "a", refused: "a time"},
	"MEMCACHE_TLS":             {value: "true", refusedValue: "a", refused: "true or false"},
	"MEMCACHE_TLS_CLIENT_CERT": {value: "/c"}, "MEMCACHE_TLS_CLIENT_KEY": {value: "/k"},
	"MEMCACHE_TLS_CACERT":                     {value: "/ca"},
	"MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION": {value: "true", refusedValue: "a", refused: "true or false"},

	"REDIS_SOCKET_TYPE": {
		beside: "REDIS_URL=redis:6379", value: "tcp",
		want: "store=redis://redis:6379", refusedValue: "udp", refused: "must be tcp or unix",
	},
	"REDIS_URL": {
		value: "/run/redis.sock", want: "store=unix:///run/redis.sock",
		refusedValue: "redis:6379", refused: "set that to tcp",
	},
	"REDIS_TYPE": {
		beside: "REDIS_SOCKET_TYPE=tcp REDIS_URL=mymaster,a:26379,b:26379",
		value:  "Sentinel", want: "store=redis+sentinel://a:26379,b:26379/mymaster", refusedValue: "RING",
		refused: "SINGLE, SENTINEL or CLUSTER",
	},
	"REDIS_AUTH": {
		beside: "REDIS_SOCKET_TYPE=tcp REDIS_URL=redis:6379", value: "us:p@s/s:w",
		want: "store=redis://us:p%40s%2Fs%3Aw@redis:6379",
	},
	"REDIS_SENTINEL_AUTH": {
		beside: "REDIS_SOCKET_TYPE=tcp REDIS_TYPE=SENTINEL REDIS_URL=m,a:1",
		value:  "x&y", want: "store=redis+sentinel://a:1/m?sentinel_password=x%26y",
	},
	"REDIS_TLS": {
		beside: "REDIS_SOCKET_TYPE=tcp REDIS_URL=redis:6379/3", value: "true",
		want: "store=rediss://redis:6379/3", refusedValue: "a", refused: "true or false",
	},
	"REDIS_TLS_CACERT": {
		beside: "REDIS_SOCKET_TYPE=tcp REDIS_TLS=true REDIS_URL=redis:6379",
		value:  "/ca", want: "store=rediss://redis:6379?tls_ca=/ca",
	},
	"REDIS_TLS_CLIENT_CERT": {
		beside: "REDIS_SOCKET_TYPE=tcp REDIS_TLS=true REDIS_URL=redis:6379",
		value:  "/c", want: "store=rediss://redis:6379?tls_cert=/c",
	},
	"REDIS_TLS_CLIENT_KEY": {
		beside: "REDIS_SOCKET_TYPE=tcp REDIS_TLS=true REDIS_URL=redis:6379",
		value:  "/k", want: "store=rediss://redis:6379?tls_key=/k",
	},
	"REDIS_TLS_SKIP_HOSTNAME_VERIFICATION": {
		beside: "REDIS_SOCKET_TYPE=tcp REDIS_TLS=true REDIS_URL=redis:6379",
		value:  "true", want: "store=rediss://redis:6379?tls_skip_hostname=true", refusedValue: "a", refused: "true or false",
	},
	"REDIS_POOL_SIZE": {value: "20", refusedValue: "a", refused: "a whole number"},
	"REDIS_TIMEOUT": {
		value: "20s", want: "store-timeout=10s", refusedValue: "a",
		refused: "a time",
	},
	"REDIS_PIPELINE_WINDOW":                    {value: "150us", refusedValue: "a", refused: "a time"},
	"REDIS_PIPELINE_LIMIT":                     {value: "8", refusedValue: "a", refused: "a whole number"},
	"REDIS_CLUSTER_PIPELINE_PARALLELISM":       {value: "8", refusedValue: "a", refused: "a whole number"},
	"REDIS_POOL_ON_EMPTY_BEHAVIOR":             {value: "CREATE"},
	"REDIS_STARTUP_INITIAL_INTERVAL":           {value: "2s", refusedValue: "a", refused: "a time"},
	"REDIS_STARTUP_MAX_INTERVAL":               {value: "2s", refusedValue: "a", refused: "a time"},
	"REDIS_STARTUP_MAX_ELAPSED_TIME":           {value: "2s", refusedValue: "a", refused: "a time"},
	"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION":     {value: "true", refusedValue: "a", refused: "true or false"},
	"REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR": {value: "true", refusedValue: "a", refused: "true or false"},
	"REDIS_PERSECOND": {
		beside: "REDIS_PERSECOND_SOCKET_TYPE=tcp REDIS_PERSECOND_URL=second:1",
		value:  "true", want: "per-second-store=redis://second:1", refusedValue: "a", refused: "true or false",
	},
	"REDIS_PERSECOND_SOCKET_TYPE": {
		beside: "REDIS_PERSECOND=1 REDIS_PERSECOND_URL=second:1", value: "tcp",
		want: "per-second-store=redis://second:1", refusedValue: "x", refused: "must be tcp or unix",
	},
	"REDIS_PERSECOND_TYPE": {
		beside: "REDIS_PERSECOND=1 REDIS_PERSECOND_SOCKET_TYPE=tcp " +
			"REDIS_PERSECOND_URL=a:1,b:1", value: "cluster", want: "per-second-store=redis+cluster://a:1,b:1", refusedValue: "x",
		refused: "SINGLE, SENTINEL",
	},
	"REDIS_PERSECOND_URL": {
		beside: "REDIS_PERSECOND=1 REDIS_PERSECOND_SOCKET_TYPE=tcp",
		value:  "rediss://:w@second:1/2", want: "per-second-store=rediss://:w@second:1/2", refusedValue: "http://second:1",
		refused: "must be HOST:PORT",
	},
	"REDIS_PERSECOND_AUTH": {beside: "REDIS_PERSECOND=1 REDIS_PERSECOND_SOCKET_TYPE=tcp " +
		"REDIS_PERSECOND_URL=a:1", value: "w", want: "per-second-store=redis://:w@a:1"},
	"REDIS_PERSECOND_SENTINEL_AUTH": {
		beside: "REDIS_PERSECOND=1 REDIS_PERSECOND_SOCKET_TYPE=tcp " +
			"REDIS_PERSECOND_TYPE=SENTINEL REDIS_PERSECOND_URL=m,a:1", value: "u:w",
		want: "per-second-store=redis+sentinel://a:1/m?sentinel_password=w&sentinel_username=u",
	},
	"REDIS_PERSECOND_TLS": {
		beside: "REDIS_PERSECOND=1 REDIS_PERSECOND_SOCKET_TYPE=tcp " +
			"REDIS_PERSECOND_URL=a:1 REDIS_TLS_CACERT=/ca", value: "true", want: "per-second-store=rediss://a:1?tls_ca=/ca",
		refusedValue: "a", refused: "true or false",
	},
	"REDIS_PERSECOND_TIMEOUT": {
		beside: "REDIS_PERSECOND=1 REDIS_PERSECOND_SOCKET_TYPE=tcp " +
			"REDIS_PERSECOND_URL=a:1", value: "20ms", want: "per-second-store=redis://a:1?timeout=20ms", refusedValue: "a",
		refused: "a time",
	},
	"REDIS_PERSECOND_POOL_SIZE":              {value: "20", refusedValue: "a", refused: "a whole number"},
	"REDIS_PERSECOND_PIPELINE_WINDOW":        {value: "20us", refusedValue: "a", refused: "a time"},
	"REDIS_PERSECOND_PIPELINE_LIMIT":         {value: "20", refusedValue: "a", refused: "a whole number"},
	"REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR": {value: "ERROR"},
	"CACHE_KEY_PREFIX":                       {value: "eu:", want: "store-key-prefix=weir:eu:"},
	"EXPIRATION_JITTER_MAX_SECONDS":          {value: "5", refusedValue: "a", refused: "a whole number"},
	"LOCAL_CACHE_SIZE_IN_BYTES":              {value: "5000", refusedValue: "a", refused: "a whole number"},

	"NEAR_LIMIT_RATIO": {
		value: "0.5", want: "near-limit-ratio=0.5", refusedValue: "a",
		refused: "a number",
	},
	"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT": {
		value: "false", want: "charge-each=true", refusedValue: "a",
		refused: "true or false",
	},
	"SHADOW_MODE": {
		value: "true", want: "shadow-mode=true", refusedValue: "a",
		refused: "true or false",
	},
	"QUOTA_MODE": {
		value: "true", want: "quota-mode=true", refusedValue: "a",
		refused: "true or false",
	},
	"RESPONSE_DYNAMIC_METADATA": {
		value: "true", want: "dynamic-metadata=true", refusedValue: "a",
		refused: "true or false",
	},
	"LIMIT_RESPONSE_HEADERS_ENABLED": {
		value: "true", want: "ratelimit-headers=true", refusedValue: "a",
		refused: "true or false",
	},
	"LIMIT_LIMIT_HEADER": {
		beside: "LIMIT_RESPONSE_HEADERS_ENABLED=1", value: "a",
		want: "ratelimit-limit-header=a",
	},
	"LIMIT_REMAINING_HEADER": {
		beside: "LIMIT_RESPONSE_HEADERS_ENABLED=1", value: "a",
		want: "ratelimit-remaining-header=a",
	},
	"LIMIT_RESET_HEADER": {
		beside: "LIMIT_RESPONSE_HEADERS_ENABLED=1", value: "a",
		want: "ratelimit-reset-header=a",
	},
	"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED": {
		value: "true", want: "healthcheck-needs-rules=true", refusedValue: "a",
		refused: "true or false",
	},

	"USE_STATSD": {
		value: "true", want: "statsd-addr=tcp://localhost:8125", refusedValue: "a",
		refused: "true or false",
	},
	"STATSD_HOST": {value: "statsd", want: "statsd-addr=tcp://statsd:8125"},
	"STATSD_PORT": {
		value: "tcp://10.0.0.7:9125", want: "statsd-addr=tcp://localhost:9125",
		refusedValue: "udp://x", refused: "a port",
	},
	"STATSD_PROTOCOL": {
		value: "udp", want: "statsd-addr=udp://localhost:8125", refusedValue: "http",
		refused: "must be tcp or udp",
	},
	"USE_DOG_STATSD": {
		value: "true", want: "statsd-addr=udp://localhost:8125", refusedValue: "a",
		refused: "true or false",
	},
	"USE_DOG_STATSD_MOGRIFIERS": {value: "FOO"},
	"EXTRA_TAGS": {
		beside: "USE_DOG_STATSD=true", value: "env:prod,zone:a", want: "statsd-tag=zone:a",
		refusedValue: "prod", refused: "must be key:value",
	},
	"STATS_FLUSH_INTERVAL": {value: "100ms", want: "statsd-interval=1s", refusedValue: "a", refused: "a time"},
	"DISABLE_STATS": {
		value: "false", want: "classic-metrics=true", refusedValue: "a",
		refused: "true or false",
	},
	"USE_PROMETHEUS":         {value: "true", want: "metrics-addr=:9090", refusedValue: "a", refused: "true or false"},
	"PROMETHEUS_ADDR":        {beside: "USE_PROMETHEUS=true", value: ":19001", want: "metrics-addr=:19001"},
	"PROMETHEUS_PATH":        {beside: "USE_PROMETHEUS=true", value: "/m", want: "metrics-path=/m"},
	"PROMETHEUS_MAPPER_YAML": {beside: "USE_PROMETHEUS=true", value: "/m.yaml"},
	"PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS": {
		beside: "USE_PROMETHEUS=true", value: "true", refusedValue: "a",
		refused: "true or false",
	},

	"TRACING_ENABLED": {value: "true", want: "otel-traces=true", refusedValue: "a", refused: "true or false"},
	"TRACING_EXPORTER_PROTOCOL": {
		beside: "TRACING_ENABLED=true", value: "gRPC", want: "otel-protocol=grpc",
		refusedValue: "udp", refused: "must be http or grpc",
	},
	"TRACING_SERVICE_NAME": {beside: "TRACING_ENABLED=true", value: "rl", want: "OTEL_SERVICE_NAME=rl"},
	"TRACING_SERVICE_NAMESPACE": {
		beside: "TRACING_ENABLED=true OTEL_RESOURCE_ATTRIBUTES=a=b", value: "x y",
		want: "OTEL_RESOURCE_ATTRIBUTES=a=b,service.namespace=x%20y",
	},
	"TRACING_SERVICE_INSTANCE_ID": {
		beside: "TRACING_ENABLED=true", value: "i",
		want: "OTEL_RESOURCE_ATTRIBUTES=service.instance.id=i",
	},
	"TRACING_SAMPLING_RATE": {
		beside: "TRACING_ENABLED=true", value: "0.25", want: "OTEL_TRACES_SAMPLER_ARG=0.25",
		refusedValue: "-1", refused: "a share",
	},
}

// texts are the flags and variables.
func texts(s *Settings) (all []string) {
	for _, f := range append(slices.Clone(s.Flags), s.OTel...) {
		all = append(all, f.Name+"="+f.Value)
	}
	return all
}

// with is an environment without name, and with it if it has a value.
func with(beside, name, value string) (environ []string) {
	for v := range strings.FieldsSeq(beside) {
		if n, _, _ := strings.Cut(v, "="); n != name {
			environ = append(environ, v)
		}
	}
	if name != "STATSD_PROTOCOL" && !strings.Contains(beside, "REDIS_URL") && name != "REDIS_URL" {
		environ = append(environ, "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=127.0.0.1:6379")
	}
	if value != "" {
		environ = append(environ, name+"="+value)
	}
	return environ
}

// Every variable of envoyproxy/ratelimit does what the page about it says.
func TestEveryVariable(t *testing.T) {
	page, err := os.ReadFile("../../../docs/migrating/envoyproxy-ratelimit.md")
	if err != nil {
		t.Fatal(err)
	}
	actions := map[string]string{}
	rows := regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\| \\S* \\| (\\w+) \\|")
	for _, row := range rows.FindAllStringSubmatch(string(page), -1) {
		actions[row[1]] = row[2]
	}
	for _, v := range Variables() {
		c, ok := cases[v.Name]
		if !ok {
			t.Errorf("no case for %s", v.Name)
			continue
		}
		if c.refused != "" {
			_, err := Read(with(c.beside, v.Name, c.refusedValue))
			if err == nil || !strings.Contains(err.Error(), v.Name) || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%s=%s: error %v, want %q", v.Name, c.refusedValue, err, c.refused)
			}
		}
		got, err := Read(with(c.beside, v.Name, c.value))
		if err != nil {
			t.Errorf("%s=%s: %v", v.Name, c.value, err)
			continue
		}
		remarked := slices.ContainsFunc(got.Remarks, func(line string) bool { return strings.HasPrefix(line, v.Name+":") })
		switch actions[v.Name] {
		case "map":
			if c.want == "" || !slices.Contains(texts(got), c.want) {
				t.Errorf("%s=%s: %q, want %q", v.Name, c.value, texts(got), c.want)
			}
		case "note":
			if !remarked {
				t.Errorf("%s=%s: no remark", v.Name, c.value)
			}
			fallthrough
		case "ignore":
			without, err := Read(with(c.beside, v.Name, ""))
			if err != nil || !cmp.Equal(texts(without), texts(got)) {
				t.Errorf("%s=%s has an effect, %v", v.Name, c.value, cmp.Diff(texts(without), texts(got)))
			}
			if actions[v.Name] == "ignore" && remarked {
				t.Errorf("%s=%s has a remark", v.Name, c.value)
			}
		case "refuse":
		default:
			t.Errorf("the page does not say what becomes of %s", v.Name)
		}
	}
	if len(cases) != len(Variables()) {
		t.Errorf("%d cases, want %d", len(cases), len(Variables()))
	}
}

// A variable with the value that it has by default does nothing.
func TestDefaults(t *testing.T) {
	for _, beside := range []string{"", "USE_PROMETHEUS=true TRACING_ENABLED=true REDIS_PERSECOND=true"} {
		base, err := Read(strings.Fields(beside))
		if err != nil {
			t.Fatal(err)
		}
		defaults := map[string]string{}
		for _, s := range base.Flags {
			defaults[s.Name] = s.Value
		}
		for _, v := range Variables() {
			if strings.Contains(beside, v.Name+"=") || v.Default == "" {
				continue
			}
			got, err := Read(append(strings.Fields(beside), v.Name+"="+v.Default))
			if err != nil {
				t.Errorf("%s=%s: %v", v.Name, v.Default, err)
				continue
			}
			for _, s := range got.Flags {
				if was, ok := defaults[s.Name]; ok && was != s.Value && !strings.HasSuffix(v.Name, "_TIMEOUT") {
					t.Errorf("%s=%s makes --%s %s, by default it is %s", v.Name, v.Default, s.Name, s.Value, was)
				}
			}
		}
	}
}

// All that is wrong is in one error.
func TestEveryError(t *testing.T) {
	_, err := Read([]string{"USE_STATSD=maybe", "PORT=x", "BACKEND_TYPE=memcache", "REDIS_TIMEOUT=10", "CONFIG_TYPE=x"})
	if err == nil || strings.Count(err.Error(), "\n") != 4 {
		t.Errorf("error %v, want five lines", err)
	}
}

// No secret is shown, also not by an error, and the user is told where it belongs.
func TestSecrets(t *testing.T) {
	s, err := Read([]string{
		"REDIS_SOCKET_TYPE=tcp", "REDIS_TYPE=SENTINEL", "REDIS_URL=m,a:1", "REDIS_AUTH=u:hunter2",
		"REDIS_SENTINEL_AUTH=hunter2",
		"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=authorization:hunter2",
		"REDIS_PERSECOND=true", "REDIS_PERSECOND_SOCKET_TYPE=tcp", "REDIS_PERSECOND_URL=redis://:hunter2@b:1",
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range s.Flags {
		if strings.Contains(f.Shown, "hunter2") {
			t.Errorf("--%s shows %s", f.Name, f.Shown)
		}
	}
	if len(s.Secrets) != 4 || strings.Contains(strings.Join(append(s.Secrets, s.Remarks...), "\n"), "hunter2") {
		t.Errorf("secrets %q, want 4 lines", s.Secrets)
	}
	_, err = Read([]string{
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=redis://:hunter2@%zz", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=hunter2",
	})
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("error %v, want one without the secret", err)
	}
}

// Kubernetes sets GRPC_PORT and DEBUG_PORT beside Services that are called so: nobody meant to listen there.
func TestServiceLinks(t *testing.T) {
	s, err := Read([]string{"GRPC_PORT=tcp://10.0.0.7:9000", "DEBUG_PORT=tcp://10.0.0.8:80"})
	if err != nil {
		t.Fatal(err)
	}
	if got := texts(s); !slices.Contains(got, "grpc-addr=0.0.0.0:8081") ||
		!slices.Contains(got, "debug-addr=0.0.0.0:6070") {
		t.Errorf("%q, want the default ports", got)
	}
	if all := strings.Join(s.Remarks, "\n"); !strings.Contains(all, "a Service named grpc") ||
		!strings.Contains(all, "a Service named debug") {
		t.Errorf("remarks %q", all)
	}
}
