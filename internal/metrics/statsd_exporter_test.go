package metrics

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/pkg/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// mapping takes names apart as configurations for envoyproxy/ratelimit do.
func mapping() string {
	var text strings.Builder
	text.WriteString("mappings:\n")
	for _, stat := range []string{
		"total_hits", "over_limit", "near_limit", "within_limit", "shadow_mode", "over_limit_with_local_cache",
	} {
		fmt.Fprintf(&text, "- {match: ratelimit.service.rate_limit.*.*.%[1]s, name: ratelimit_service_rate_limit_%[1]s, "+
			"labels: {domain: $1, key1: $2}}\n", stat)
		fmt.Fprintf(&text, "- {match: ratelimit.service.rate_limit.*.*.*.%[1]s, name: ratelimit_service_rate_limit_%[1]s, "+
			"labels: {domain: $1, key1: $2, key2: $3}}\n", stat)
	}
	return text.String()
}

// exporter runs a real statsd server, and returns where it listens and what it shows.
func exporter(t *testing.T) (addr string, show func() string) {
	t.Helper()
	tool := proctest.Program(t, "statsd_exporter")
	config := filepath.Join(t.TempDir(), "mapping.yaml")
	if err := os.WriteFile(config, []byte(mapping()), 0o600); err != nil {
		t.Fatal(err)
	}
	web := net.JoinHostPort("127.0.0.1", strconv.Itoa(proctest.FreePort(t)))
	addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(proctest.FreePort(t)))
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	get := func() (string, error) {
		res, err := client.Get("http://" + web + "/metrics")
		if err != nil {
			return "", err
		}
		body, err := io.ReadAll(res.Body)
		return string(body), errors.Join(err, res.Body.Close())
	}
	cmd := exec.Command(tool, "--web.listen-address", web, "--statsd.listen-udp", addr, "--statsd.listen-tcp", "",
		"--statsd.mapping-config", config)
	proctest.Start(t, "statsd_exporter", cmd).Await(patience, func() error {
		_, err := get()
		return err
	})
	return "udp://" + addr, func() string {
		text, err := get()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
}

// afterRequests is a process's metrics after some requests.
func afterRequests(t *testing.T) *Metrics {
	t.Helper()
	set, err := rulefile.Compile([]rulefile.File{{Name: "rules.yaml", Data: []byte(`domain: shop
descriptors:
- {key: client, rate_limit: {requests_per_unit: 10, unit: second}}
- key: path
  value: /login
  descriptors: [{key: remote_address, rate_limit: {requests_per_unit: 10, unit: second}}]
`)}})
	if err != nil {
		t.Fatal(err)
	}
	m := New(Options{MaxRules: 10, NearLimitRatio: 0.8})
	m.RulesCompiled(set)
	for i, l := range set.Limits() {
		m.Decided(l, decide.Allowed, int64(3+i), &limiter.Decision{Allowed: true})
		m.Decided(l, decide.Denied, int64(5+i), &limiter.Decision{Cached: true})
	}
	m.Requested(time.Millisecond)
	return m
}

// A real statsd server, with a configuration as for envoyproxy/ratelimit, shows what was counted.
func TestExporter(t *testing.T) {
	m := afterRequests(t)
	for format, want := range map[string][]string{
		statsdFormat: {
			`ratelimit_service_rate_limit_total_hits{domain="shop",key1="client"} 8`,
			`ratelimit_service_rate_limit_over_limit{domain="shop",key1="client"} 5`,
			`ratelimit_service_rate_limit_over_limit_with_local_cache{domain="shop",key1="client"} 5`,
			`ratelimit_service_rate_limit_near_limit{domain="shop",key1="client"} 2`,
			`ratelimit_service_rate_limit_within_limit{domain="shop",key1="path__login",key2="remote_address"} 4`,
			`ratelimit_server_ShouldRateLimit_total_requests 1`,
			`ratelimit_server_ShouldRateLimit_response_time_count 1`,
		},
		dogstatsdFormat: {
			`ratelimit_service_rate_limit_within_limit{domain="shop",env="test",key1="client"} 3`,
			`ratelimit_service_rate_limit_over_limit{domain="shop",env="test",key1="path_/login",key2="remote_address"} 6`,
			`ratelimit_service_total_requests{env="test",grpc_method="ShouldRateLimit"} 1`,
		},
	} {
		t.Run(format, func(t *testing.T) {
			addr, show := exporter(t)
			o := StatsdOptions{
				Addr: addr, Format: format, Interval: time.Second, Log: slog.New(slog.DiscardHandler),
			}
			if format == dogstatsdFormat {
				o.Tags = []string{"env:test"}
			}
			s, err := NewStatsd(o)
			if err != nil {
				t.Fatal(err)
			}
			send(t, s, m.Classic())
			missing := want
			deadline := time.Now().Add(patience)
			for ; len(missing) > 0 && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
				missing = nil
				text := show()
				for _, line := range want {
					if !strings.Contains(text, "\n"+line+"\n") {
						missing = append(missing, line)
					}
				}
			}
			if text := show(); len(missing) > 0 {
				t.Errorf("missing:\n%s\nin\n%s", strings.Join(missing, "\n"), text)
			}
			text := show()
			if strings.Contains(text, `statsd_exporter_sample_errors_total{`) ||
				!strings.Contains(text, "statsd_exporter_lines_total") {
				t.Errorf("the exporter could not read all lines:\n%s", text)
			}
		})
	}
}
