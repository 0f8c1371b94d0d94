package store

import (
	"iter"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/internal/test/partnertest"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

func one[S any](s S) iter.Seq[S] { return func(yield func(S) bool) { yield(s) } }

// Each figure of the stores has the right metric.
func TestMetrics(t *testing.T) {
	stats := redisstore.Stats{
		Calls: 7, Requests: 26, Texts: 27, Restarted: 28, Cut: 281, Pool: redis.PoolStats{
			TotalConns: 40, IdleConns: 30, Hits: 31, Misses: 32, WaitCount: 33, Timeouts: 34, StaleConns: 35,
		},
	}
	got := partnertest.Series(t,
		memoryMetrics(one(memoryStats{
			memstore.Stats{Counters: 18, Bytes: 19, Expired: 20, Evicted: 21, Cut: 221, LimitingEvicted: 211}, 23,
		})),
		redisMetrics(one(redisStats{"b", stats})),
		leaseMetrics(one(guard.LeaseStats{Keys: 1, Permits: 2, Answers: 3, Acquired: 4, Released: 5, Lost: 6})),
	)
	want := map[string]string{
		"weir_lease_counters": "1", "weir_lease_permits": "2", "weir_lease_answers_total": "3",
		"weir_lease_permits_acquired_total": "4", "weir_lease_permits_released_total": "5", "weir_lease_permits_lost_total": "6",
		"weir_memory_counters": "18", "weir_memory_bytes": "19", "weir_memory_counters_expired_total": "20",
		"weir_memory_counters_evicted_total": "21", "weir_memory_max_counters": "23",
		"weir_memory_cut_counters_total": "221", "weir_memory_limiting_evicted_total": "211",
		`weir_store_batch_requests_bucket{store="b",le="+Inf"}`:  "7",
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
