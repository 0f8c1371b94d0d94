package cli

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/cli/ratelimitenv"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// ratelimit is a process of the name ratelimit, with nothing but the variables in its environment.
type ratelimit struct {
	*proctest.Process

	t                          *testing.T
	http, grpc, debug, metrics string
}

// startRatelimit runs the program on ports of its own, with arguments that mean nothing.
func startRatelimit(t *testing.T, environ ...string) *ratelimit {
	t.Helper()
	name := filepath.Join(t.TempDir(), "ratelimit")
	if err := os.Symlink(proctest.WeirBinary(t), name); err != nil {
		t.Fatal(err)
	}
	r := &ratelimit{
		t: t, http: proctest.FreeAddr(t), grpc: proctest.FreeAddr(t), debug: proctest.FreeAddr(t),
		metrics: proctest.FreeAddr(t),
	}
	cmd := exec.Command(name, "--quotaRateLimitServiceAddr=x", "/bin/ratelimit")
	cmd.Env = environ
	for variable, addr := range map[string]string{"": r.http, "GRPC_": r.grpc, "DEBUG_": r.debug} {
		host, port, _ := net.SplitHostPort(addr)
		cmd.Env = append(cmd.Env, variable+"HOST="+host, variable+"PORT="+port)
	}
	cmd.Env = append(cmd.Env, "PROMETHEUS_ADDR="+r.metrics)
	r.Process = proctest.Start(t, "ratelimit", cmd)
	return r
}

// get returns the status and body of a page.
func (r *ratelimit) get(addr, path, body string) (status int, text string, err error) {
	client := http.Client{Timeout: 5 * time.Second}
	res, err := client.Post("http://"+addr+path, "application/json", strings.NewReader(body))
	if body == "" {
		res, err = client.Get("http://" + addr + path)
	}
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close() //nolint:errcheck // only read from
	got, err := io.ReadAll(res.Body)
	return res.StatusCode, string(got), err
}

func (r *ratelimit) awaitHealthy() {
	r.t.Helper()
	r.Await(proctest.Patience, func() error {
		status, text, err := r.get(r.http, "/healthcheck", "")
		if err == nil && (status != http.StatusOK || text != "OK") {
			err = fmt.Errorf("%d %q", status, text)
		}
		return err
	})
}

// A process called ratelimit, with the environment of the sample of Istio, limits by the files below RUNTIME_ROOT,
// whatever arguments it has.
func TestRatelimitWithFiles(t *testing.T) {
	redis := redistest.Start(t)
	root := t.TempDir()
	config := filepath.Join(root, "ratelimit", "config")
	if err := os.MkdirAll(config, 0o700); err != nil {
		t.Fatal(err)
	}
	rules := "domain: ratelimit\ndescriptors:\n  - {key: PATH, value: /a, rate_limit: {unit: hour, requests_per_unit: 1}}\n"
	if err := os.WriteFile(filepath.Join(config, "config"), []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	r := startRatelimit(t,
		"LOG_LEVEL=debug", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+redis.Addr(), "USE_STATSD=false", "RUNTIME_ROOT="+root,
		"RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false", "RUNTIME_IGNOREDOTFILES=true")
	r.awaitHealthy()
	const body = `{"domain": "ratelimit", "descriptors": [{"entries": [{"key": "PATH", "value": "/a"}]}]}`
	for _, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
		status, text, err := r.get(r.http, "/json", body)
		if err != nil || status != want || !json.Valid([]byte(text)) {
			t.Errorf("/json answers %d %s, %v; want %d", status, text, err, want)
		}
	}
	const line = "ratelimit.PATH_/a: unit=HOUR requests_per_unit=1, shadow_mode: false, quota_mode: false\n"
	if _, text, err := r.get(r.debug, "/rlconfig", ""); err != nil || text != line {
		t.Errorf("/rlconfig is %q, %v; want %q", text, err, line)
	}
	for _, want := range []string{
		"level=WARN msg=\"compatibility mode: ", "domain=ratelimit denied=true descriptors=\"PATH=/a cost 1, ",
	} {
		proctest.Await(t, proctest.Patience, func() error { // a line may be written after the answer
			if !strings.Contains(r.Output(), want) {
				return fmt.Errorf("the log has no %q", want)
			}
			return nil
		})
	}
	if code := r.Terminate(time.Minute); code != exitOK {
		t.Errorf("it ends with %d", code)
	}
}

// gatewayEnv is the environment that Envoy Gateway gives the process, with the certificates in dir.
func gatewayEnv(dir, redis, xds string) []string {
	return []string{
		"RUNTIME_ROOT=/data", "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_IGNOREDOTFILES=true", "RUNTIME_WATCH_ROOT=false",
		"LOG_LEVEL=info", "USE_STATSD=false", "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=" + xds,
		"CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit", "CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
		"CONFIG_GRPC_XDS_CLIENT_TLS_CERT=" + dir + "/tls.crt", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY=" + dir + "/tls.key",
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT=" + dir + "/ca.crt", "GRPC_SERVER_USE_TLS=true",
		"GRPC_SERVER_TLS_CERT=" + dir + "/tls.crt", "GRPC_SERVER_TLS_KEY=" + dir + "/tls.key",
		"GRPC_SERVER_TLS_CA_CERT=" + dir + "/ca.crt", "FORCE_START_WITHOUT_INITIAL_CONFIG=true", "REDIS_SOCKET_TYPE=tcp",
		"REDIS_URL=" + redis, "USE_PROMETHEUS=true", "PROMETHEUS_MAPPER_YAML=/etc/statsd-exporter/conf.yaml",
		"TRACING_ENABLED=true", "TRACING_SERVICE_NAME=envoy-ratelimit", "TRACING_SERVICE_NAMESPACE=envoy-gateway-system",
		"TRACING_SERVICE_INSTANCE_ID=envoy-ratelimit-0", "TRACING_SAMPLING_RATE=0.5",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318",
	}
}

// A process called ratelimit starts with exactly the environment of Envoy Gateway: health, TLS, metrics, remarks in the
// log. Its control plane is not there yet.
func TestRatelimitWithEnvoyGatewaysEnvironment(t *testing.T) {
	redis := redistest.Start(t)
	authority, dir := proctest.NewAuthority(t), t.TempDir()
	cert, key := authority.Issue("server", "127.0.0.1")
	for from, to := range map[string]string{cert: "tls.crt", key: "tls.key", authority.CA(): "ca.crt"} {
		if err := os.Symlink(from, filepath.Join(dir, to)); err != nil {
			t.Fatal(err)
		}
	}
	r := startRatelimit(t, gatewayEnv(dir, redis.Addr(), proctest.FreeAddr(t))...)
	r.awaitHealthy()
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}}
	conn, err := dialer.DialContext(t.Context(), "tcp", r.grpc)
	if err != nil {
		t.Fatalf("no TLS at the gRPC address: %v", err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	status, text, err := r.get(r.metrics, "/metrics", "")
	if err != nil || status != http.StatusOK || !strings.Contains(text, "ratelimit_service_") {
		t.Errorf("metrics: %d, %v\n%.500s", status, err, text)
	}
	log := r.Output()
	for _, want := range []string{"GRPC_SERVER_TLS_CA_CERT: has no effect", "PROMETHEUS_MAPPER_YAML: has no effect"} {
		if strings.Count(log, want) != 1 {
			t.Errorf("the log has not %q once:\n%s", want, log)
		}
	}
	if code := r.Terminate(time.Minute); code != exitOK {
		t.Errorf("it ends with %d", code)
	}
}

// Every flag that the environment can lead to is one of serve.
func TestRatelimitFlagsExist(t *testing.T) {
	flags := serveFlags(t)
	for _, extra := range [][]string{
		nil, gatewayEnv("/certs", "redis:6379", "eg:18001"),
		{
			"SHADOW_MODE=1", "QUOTA_MODE=1", "REDIS_PERSECOND=1", "USE_DOG_STATSD=1", "EXTRA_TAGS=a:b", "GRPC_SERVER_USE_TLS=1",
			"GRPC_SERVER_TLS_CERT=c", "GRPC_SERVER_TLS_KEY=k", "GRPC_CLIENT_TLS_CACERT=c", "GRPC_CLIENT_TLS_SAN=s",
			"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=1", "LIMIT_RESPONSE_HEADERS_ENABLED=1", "RESPONSE_DYNAMIC_METADATA=1",
			"STATS_FLUSH_INTERVAL=5s", "CACHE_KEY_PREFIX=x", "NEAR_LIMIT_RATIO=0.7", "PROMETHEUS_PATH=/m", "USE_PROMETHEUS=1",
		},
	} {
		settings, err := ratelimitenv.Read(extra)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range settings.Flags {
			if flags[f.Name] == nil {
				t.Errorf("serve has no flag --%s", f.Name)
			}
		}
	}
}

// A variable of Weir's own wins over what the mode sets.
func TestOwnVariableWins(t *testing.T) {
	t.Setenv("REDIS_SOCKET_TYPE", "tcp")
	t.Setenv("REDIS_URL", "redis:6379")
	t.Setenv("WEIR_ON_STORE_FAILURE", "sometimes")
	var out, errs strings.Builder
	if code := start(t.Context(), []string{"/bin/weir", "/bin/ratelimit"}, &out, &errs); code != exitUsage ||
		!strings.Contains(errs.String(), `--on-store-failure: must be`) || !strings.Contains(errs.String(), `"sometimes"`) {
		t.Errorf("exit code %d:\n%s", code, &errs)
	}
}

// migrate-env writes a command line without secrets, and says where they belong.
func TestMigrateEnv(t *testing.T) {
	file := filepath.Join(t.TempDir(), "env")
	text := "# of a Deployment\nREDIS_SOCKET_TYPE=tcp\nREDIS_URL=\"redis:6379\"\nexport REDIS_AUTH=hunter2\nUSE_STATSD=false\nHOST=::\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("WEIR_STORE_TIMEOUT", "nonsense, but of this process")
	var out, errs strings.Builder
	if code := run(t.Context(), []string{"migrate-env", file}, &out, &errs); code != exitOK {
		t.Fatalf("exit code %d:\n%s", code, &errs)
	}
	for _, want := range []string{
		"# --store has a secret (from REDIS_URL, REDIS_SOCKET_TYPE, REDIS_AUTH), which no command line should show, so set WEIR_STORE from", "\nweir serve \\\n  --http-addr='[::]:8080' \\\n",
		"\n  --store='redis://redis:6379?password_file=/etc/weir/redis-password' \\\n", "\n  --charge-each \\\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it writes\n%s\nwithout %q", &out, want)
		}
	}
	if strings.Contains(out.String(), "hunter2") {
		t.Errorf("it writes the secret:\n%s", &out)
	}
	if err := os.WriteFile(file, []byte("PORT\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code := run(t.Context(), []string{"migrate-env", file}, &out, &errs); code != exitUsage ||
		!strings.Contains(errs.String(), "line 1: write NAME=VALUE") {
		t.Errorf("exit code %d:\n%s", code, &errs)
	}
}
