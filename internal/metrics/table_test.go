package metrics_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/conns"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/internal/rlqs"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// The numbers of every source, under their names.
func TestSources(t *testing.T) {
	m := newMetrics()
	m.Breaker.From(func() int { return 3 })
	m.Clients.From(func() []metrics.ClientStats {
		stats := conns.Stats{Open: 4, Max: 5}
		stats.Refused[conns.Idle], stats.Refused[conns.Slow] = 7, 8
		return []metrics.ClientStats{{"grpc", stats}, {"http", stats}}
	})
	m.ClientMemory.From(func() int64 { return 6 })
	m.Denials.From(func() uint64 { return 11 })
	m.Handshakes.From(func() map[string]uint64 { return map[string]uint64{"grpc": 12, "http": 0} })
	m.Delayed.From(func() decide.DelayedStats { return decide.DelayedStats{Now: 13, Refused: 14} })
	m.HungReads.From(func() int { return 15 })
	m.Leases.From(func() guard.LeaseStats {
		return guard.LeaseStats{Keys: 1, Permits: 2, Answers: 3, Taken: 4, Returned: 5, Lost: 6}
	})
	m.Log.From(func() logging.QueueStats { return logging.QueueStats{FullBuffer: 16, NotWritten: 17} })
	m.Memory.From(func() metrics.MemoryStats {
		stats := memstore.Stats{Keys: 18, Bytes: 19, Expired: 20, Evicted: 21, ClockSteps: 22, Cut: 221, LimitingEvicted: 211}
		return metrics.MemoryStats{Stats: stats, MaxKeys: 23}
	})
	m.Policy.From(func() map[string]time.Duration { return map[string]time.Duration{"": time.Minute, "b": 0} })
	m.Published.From(func() *adminapi.PublishedStatus {
		return &adminapi.PublishedStatus{Version: 24, Newest: 25, Error: "away"}
	})
	m.XDS.From(func() *adminapi.XDSStatus {
		return &adminapi.XDSStatus{
			Connected: true, Domains: 2, RefusedDomains: 3, FindingCount: 4, Connections: 5, Accepted: 6,
			Refused: 7,
		}
	})
	m.Stores.From(func() []metrics.StoreStats {
		stats := redisstore.Stats{
			Requests: 26, Texts: 27, Restarted: 28, Cut: 281, Connections: 40, Idle: 30,
			Found: 31, Made: 32, Waits: 33, Timeouts: 34, Stale: 35,
		}
		stats.Batches[0], stats.Batches[1], stats.Batches[len(stats.Batches)-1] = 1, 2, 4
		return []metrics.StoreStats{{"b", stats}}
	})
	before, got := scrape(t, newMetrics()), scrape(t, m)
	maps.DeleteFunc(got, func(name, _ string) bool { return before[name] != "" })
	maps.DeleteFunc(got, func(name, _ string) bool {
		return strings.Contains(name, `_bucket{`) && !strings.Contains(name, `le="2"`)
	})
	want := map[string]string{
		"weir_store_breaker_open":           "3",
		`weir_connections{listener="grpc"}`: "4", `weir_connections_max{listener="grpc"}`: "5", "weir_client_memory_bytes": "6",
		`weir_connections{listener="http"}`: "4", `weir_connections_max{listener="http"}`: "5",
		`weir_clients_refused_total{listener="grpc",reason="full"}`:   "0",
		`weir_clients_refused_total{listener="grpc",reason="idle"}`:   "7",
		`weir_clients_refused_total{listener="grpc",reason="slow"}`:   "8",
		`weir_clients_refused_total{listener="grpc",reason="memory"}`: "0",
		`weir_clients_refused_total{listener="grpc",reason="resets"}`: "0",
		`weir_clients_refused_total{listener="grpc",reason="unread"}`: "0",
		`weir_clients_refused_total{listener="http",reason="full"}`:   "0",
		`weir_clients_refused_total{listener="http",reason="idle"}`:   "7",
		"weir_known_denials_total":                                    "11",
		`weir_tls_handshakes_failed_total{listener="grpc"}`:           "12",
		`weir_tls_handshakes_failed_total{listener="http"}`:           "0",
		"weir_held_answers": "13", "weir_held_refused_total": "14", "weir_file_reads_hung": "15",
		"weir_lease_keys": "1", "weir_lease_permits": "2", "weir_lease_answers_total": "3",
		"weir_lease_permits_taken_total": "4", "weir_lease_permits_returned_total": "5", "weir_lease_permits_lost_total": "6",
		`weir_log_dropped_total{reason="buffer"}`: "16", `weir_log_dropped_total{reason="write_error"}`: "17",
		"weir_memory_keys": "18", "weir_memory_bytes": "19", "weir_memory_keys_expired_total": "20",
		"weir_memory_keys_evicted_total": "21", "weir_memory_clock_steps_total": "22", "weir_memory_max_keys": "23", "weir_memory_cut_counters_total": "221",
		"weir_memory_limiting_evicted_total":           "211",
		`weir_store_policy_seconds{store="(default)"}`: "60", `weir_store_policy_seconds{store="b"}`: "0",
		"weir_rules_published_version": "24", "weir_rules_published_newest_version": "25",
		"weir_rules_xds_connected": "1", "weir_rules_xds_domains": "2", "weir_rules_xds_refused_domains": "3",
		"weir_rules_xds_findings": "4", "weir_rules_xds_connections_total": "5",
		`weir_rules_xds_answers_total{result="ok"}`: "6", `weir_rules_xds_answers_total{result="refused"}`: "7",
		"weir_rules_published_reachable":                         "0",
		`weir_store_batch_requests_bucket{store="b",le="2"}`:     "3",
		`weir_store_batch_requests_count{store="b"}`:             "7",
		`weir_store_batch_requests_sum{store="b"}`:               "26",
		`weir_store_script_loads_total{store="b"}`:               "27",
		`weir_store_restarted_counters_total{store="b"}`:         "28",
		`weir_store_cut_counters_total{store="b"}`:               "281",
		`weir_store_pool_connections{state="idle",store="b"}`:    "30",
		`weir_store_pool_connections{state="used",store="b"}`:    "10",
		`weir_store_pool_gets_total{result="found",store="b"}`:   "31",
		`weir_store_pool_gets_total{result="made",store="b"}`:    "32",
		`weir_store_pool_gets_total{result="timeout",store="b"}`: "34",
		`weir_store_pool_waits_total{store="b"}`:                 "33",
		`weir_store_pool_stale_total{store="b"}`:                 "35",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

// Every metric that Describe returns has series once all has happened, with the labels that Describe names.
func TestDescribe(t *testing.T) {
	m := metrics.New(metrics.Options{MaxRules: 1, Classic: true})
	set := compile(t, rule("a"))
	m.RulesCompiled(set)
	m.RulesLoaded("hash")
	for _, o := range decide.Outcomes() {
		m.Decided(set.Limits()[0], o, 1, &limiter.Decision{Cached: true})
		m.Decided(set.Limits()[0], o, -1, &limiter.Decision{})
	}
	m.DecidedByEnvoys(set.Limits()[0], decide.Allowed, 1)
	m.Rejected(codes.Internal)
	m.Timed(nil, "")
	m.Breaker.From(func() (n int) { return n })
	m.Clients.From(func() []metrics.ClientStats { return []metrics.ClientStats{{Listener: "grpc"}} })
	m.ClientMemory.From(func() (n int64) { return n })
	m.Denials.From(func() (n uint64) { return n })
	m.Handshakes.From(func() map[string]uint64 { return map[string]uint64{"grpc": 0} })
	m.Delayed.From(func() (s decide.DelayedStats) { return s })
	m.HungReads.From(func() (n int) { return n })
	m.Leases.From(func() (s guard.LeaseStats) { return s })
	m.Log.From(func() (s logging.QueueStats) { return s })
	m.Memory.From(func() (s metrics.MemoryStats) { return s })
	m.Policy.From(func() map[string]time.Duration { return map[string]time.Duration{"": 0} })
	m.Published.From(func() *adminapi.PublishedStatus { return &adminapi.PublishedStatus{} })
	m.Quotas.From(func() (s rlqs.Stats) { return s })
	m.XDS.From(func() *adminapi.XDSStatus { return &adminapi.XDSStatus{} })
	m.Stores.From(func() []metrics.StoreStats { return make([]metrics.StoreStats, 1) })
	families, err := m.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range families {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		got[f.GetName()] = strings.ToLower(f.GetType().String()) + " " + strings.Join(labels, " ") + ": " + f.GetHelp()
	}
	described, err := metrics.Describe()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, d := range described {
		want[d.Name] = d.Type + " " + strings.Join(slices.Sorted(slices.Values(d.Labels)), " ") + ": " + d.Help
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-described +registered:\n%s", diff)
	}
}
