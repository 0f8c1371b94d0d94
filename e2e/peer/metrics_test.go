//go:build e2e

package peer

import (
	"bufio"
	"context"
	_ "embed"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/launch"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

//go:embed testdata/metrics.yaml
var metricRules string

// metricTraffic are the requests before the metrics are compared.
var metricTraffic = []string{
	"plain=x", "plain=x", "plain=x", "plain=x", "plain=x", "plain=v:1|2", "ip=10.1.2.3", "a=one,b=1", "a=one,b=1,c=2",
	"watched=w", "watched=w", "watched=w", "watched=w",
	"big=1+7", "big=1+2", "big=1+1", "big=1+1", "big=2+25", "big=3+8 big=3+8",
	"plain=y big=4+9", "files=f1", "files=f2+3", "free=1", "none=1", "big=5+0", "big=1+0",
}

// TestStatsd compares what both send by statsd, over TCP, after the same requests.
func TestStatsd(t *testing.T) {
	t.Parallel()
	collected := map[string]map[string]float64{}
	for name, binary := range map[string]string{"peer": proctest.Program(t, "service_cmd"), "weir": weirAsRatelimit(t)} {
		c := collect(t)
		host, port := split(t, c.l.Addr().String())
		s := startService(t, name, binary, writeRules(t, map[string]string{"shop.yaml": metricRules}), env{
			"DISABLE_STATS": "false", "USE_STATSD": "true", "STATSD_HOST": host, "STATSD_PORT": port,
			"STATS_FLUSH_INTERVAL": "1s",
		})
		s.traffic(t)
		s.Await(patience, func() error {
			return c.have("ratelimit_server.ShouldRateLimit.total_requests", float64(len(metricTraffic)+1))
		})
		collected[name] = c.counters()
	}
	compareMetrics(t, collected["peer"], collected["weir"],
		regexp.MustCompile(`^ratelimit\.service\.|^ratelimit_server\.`), "")
}

// TestPrometheus compares what both show to Prometheus after the same requests.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	shown := map[string]map[string]float64{}
	for name, binary := range map[string]string{"peer": proctest.Program(t, "service_cmd"), "weir": weirAsRatelimit(t)} {
		addr := proctest.FreeAddr(t)
		s := startService(t, name, binary, writeRules(t, map[string]string{"shop.yaml": metricRules}), env{
			"DISABLE_STATS": "false", "USE_PROMETHEUS": "true", "PROMETHEUS_ADDR": addr, "STATS_FLUSH_INTERVAL": "1s",
		})
		s.traffic(t)
		total := `ratelimit_service_total_requests{grpc_method="ShouldRateLimit"}`
		s.Await(patience, func() error {
			before := shown[name]
			var err error
			if shown[name], err = scrape("http://" + addr + "/metrics"); err != nil {
				return err
			}
			for metric, value := range shown[name] {
				if strings.HasPrefix(metric, "ratelimit_service_") && before[metric] != value {
					return fmt.Errorf("%s still changes: it is in the middle of counting", metric)
				}
			}
			return want(shown[name], total, float64(len(metricTraffic)+1))
		})
	}
	compareMetrics(t, shown["peer"], shown["weir"], regexp.MustCompile(`^ratelimit_service_`), statsdNames)
}

// traffic asks for all of metricTraffic, and for a domain that has no rules.
func (s *service) traffic(t *testing.T) {
	t.Helper()
	for _, text := range metricTraffic {
		if a := s.ask(t.Context(), request(t, "shop", text)); a.err != nil {
			t.Fatal(a.err)
		}
	}
	if a := s.ask(t.Context(), request(t, "nowhere", "a=b")); a.err != nil {
		t.Fatal(a.err)
	}
}

// knownMetrics are the names of metrics that differ, each with its row in docs/migrating/envoyproxy-ratelimit.md.
var knownMetrics = map[string]*regexp.Regexp{
	"metrics of a request whose cost fits in part": regexp.MustCompile(`(\.big\.|_)(near|over)_limit($|\{.*key1="big")`),
	statsdNames: regexp.MustCompile(`\.a_one\.b\.|\.files_f[_*]\.`),
	"a metric for each domain that has no rules": regexp.MustCompile(`domain_not_found$`),
}

const statsdNames = "statsd names of rules below the second level"

// compareMetrics compares the metrics whose names match, but for times. Each known difference but one must be one.
func compareMetrics(t *testing.T, peer, weir map[string]float64, names *regexp.Regexp, but string) {
	t.Helper()
	all := maps.Clone(peer)
	maps.Copy(all, weir)
	left := maps.Clone(knownMetrics)
	delete(left, but)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !names.MatchString(name) || strings.Contains(name, "response_time") {
			continue
		}
		p, w := peer[name], weir[name]
		if p == w {
			continue
		}
		isKnown := false
		for row, of := range knownMetrics {
			if of.MatchString(name) {
				isKnown = true
				delete(left, row)
			}
		}
		if !isKnown {
			t.Errorf("%s: peer %v, Weir %v", name, p, w)
		}
	}
	for row := range left {
		t.Errorf("%s: they differ no longer: remove it here and from docs/migrating/envoyproxy-ratelimit.md", row)
	}
}

type missing string

func (m missing) Error() string { return string(m) }

func want(values map[string]float64, name string, v float64) error {
	if values[name] < v {
		return missing(name + " is " + strconv.FormatFloat(values[name], 'f', -1, 64))
	}
	return nil
}

// collector receives statsd over TCP.
type collector struct {
	l  net.Listener
	mu sync.Mutex
	n  map[string]float64
}

func collect(t *testing.T) *collector {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{l: l, n: map[string]float64{}}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { c.read(conn) })
		}
	})
	t.Cleanup(func() { _ = l.Close() })
	return c
}

func (c *collector) read(conn net.Conn) {
	defer conn.Close() //nolint:errcheck // only read from
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		name, rest, ok := strings.Cut(lines.Text(), ":")
		value, isCounter := strings.CutSuffix(rest, "|c")
		n, err := strconv.ParseFloat(value, 64)
		if ok && isCounter && err == nil {
			c.mu.Lock()
			c.n[name] += n
			c.mu.Unlock()
		}
	}
}

func (c *collector) counters() map[string]float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.n)
}

func (c *collector) have(name string, v float64) error { return want(c.counters(), name, v) }

// scrape returns the series of a page for Prometheus, by their name and labels.
func scrape(url string) (map[string]float64, error) {
	text, err := launch.Get(context.Background(), url)
	if err != nil {
		return nil, err
	}
	series := map[string]float64{}
	for l := range strings.Lines(string(text)) {
		l = strings.TrimSpace(l)
		at := max(0, strings.LastIndex(l, " "))
		if v, err := strconv.ParseFloat(strings.TrimSpace(l[at:]), 64); err == nil && !strings.HasPrefix(l, "#") {
			series[strings.ReplaceAll(l[:at], `,key2=""`, "")] = v
		}
	}
	return series, nil
}

// TestLocalCache compares how many hits both deny by their caches where each limit is charged by itself.
func TestLocalCache(t *testing.T) {
	t.Parallel()
	denied := map[string]float64{}
	for name, binary := range map[string]string{"peer": proctest.Program(t, "service_cmd"), "weir": weirAsRatelimit(t)} {
		c := collect(t)
		host, port := split(t, c.l.Addr().String())
		s := startService(t, name, binary, writeRules(t, map[string]string{"shop.yaml": metricRules}), env{
			"DISABLE_STATS": "false", "USE_STATSD": "true", "STATSD_HOST": host, "STATSD_PORT": port,
			"STATS_FLUSH_INTERVAL": "1s", "LOCAL_CACHE_SIZE_IN_BYTES": "1000000",
		})
		const hits = 20 // of which 3 pass, and the 4th is denied by Redis
		for range hits {
			if a := s.ask(t.Context(), request(t, "shop", "plain=x")); a.err != nil {
				t.Fatal(a.err)
			}
		}
		const cached = "ratelimit.service.rate_limit.shop.plain.over_limit_with_local_cache"
		s.Await(patience, func() error { return c.have(cached, hits-4) })
		denied[name] = c.counters()[cached]
	}
	if denied["peer"] != 16 || denied["weir"] != 16 {
		t.Errorf("denied by the cache: %v, want 16 by each", denied)
	}
}
