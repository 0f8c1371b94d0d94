package store

import (
	"iter"
	"slices"
	"time"

	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/internal/metrics/metric"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// Metrics returns the metrics of the counters, failure policies, circuit breakers, cached denials and leases.
func (s *Store) Metrics() []metric.Group {
	return []metric.Group{
		memoryMetrics(s.eachMemory),
		redisMetrics(s.eachRedis),
		leaseMetrics(s.eachLeases),
		metric.Each(slices.Values(s.remotes),
			metric.Gauges("weir_store_failure_policy_seconds", "store",
				"How long on_store_failure has decided instead of this Redis. 0: Redis decides. Alert above 60.",
				func(r *remote, w metric.Writer) { metric.Put(w, r.policyFor().Seconds(), metric.Store(r.name)) }),
		),
		metric.Each(s.withCredentials,
			metric.Counters("weir_store_credentials_failures_total", "store",
				"Failed renewals of user or password: file, command, or refusal by Redis.",
				func(r *Redis, w metric.Writer) { metric.Put(w, r.credentials.failures.Load(), metric.Store(r.o.Name)) }),
			metric.Gauges("weir_store_credentials_expire_seconds", "store",
				"Time until the answer of password_command expires, if it says so. Alert below 60.",
				func(r *Redis, w metric.Writer) {
					if l := r.credentials.current.Load(); !l.Expires.IsZero() {
						metric.Put(w, time.Until(l.Expires.Time).Seconds(), metric.Store(r.o.Name))
					}
				}),
		),
		metric.Each(metric.If(func() *guard.Breaker { return s.Breaker }),
			metric.Gauge("weir_store_breaker_open",
				"Redis servers, or masters of a Cluster, that Weir has stopped querying.",
				(*guard.Breaker).Open),
		),
		metric.Each(metric.If(func() *guard.Denials { return s.Denials }),
			metric.Counter("weir_cached_denials_total", "Requests denied from the cache, without Redis.",
				(*guard.Denials).Answered),
		),
	}
}

// memoryStats has the stats and the bound of the store in memory.
type memoryStats struct {
	memstore.Stats
	maxCounters int
}

func memoryMetrics(each iter.Seq[memoryStats]) metric.Group {
	return metric.Each(each,
		metric.Gauge("weir_memory_counters", "Counters in memory, including expired counters that are not freed yet.",
			func(m memoryStats) int { return m.Counters }),
		metric.Gauge("weir_memory_max_counters", "Maximum number of counters in memory.",
			func(m memoryStats) int { return m.maxCounters }),
		metric.Gauge("weir_memory_bytes", "Approximate size of the counters in memory.",
			func(m memoryStats) int64 { return m.Bytes }),
		metric.Counter("weir_memory_counters_expired_total", "Counters freed after they expired.",
			func(m memoryStats) uint64 { return m.Expired }),
		metric.Counter("weir_memory_counters_evicted_total",
			"Counters dropped before they expired, because memory was full. Their limits may have been exceeded.",
			func(m memoryStats) uint64 { return m.Evicted }),
		metric.Counter("weir_memory_limiting_evicted_total",
			"Evicted counters that denied or had 0 remaining, which Weir evicts only if they are seven eighths of all counters.",
			func(m memoryStats) uint64 { return m.LimitingEvicted }),
		metric.Counter("weir_memory_cut_counters_total",
			"Counters cut to full, because a rule was edited or the clock was set back.",
			func(m memoryStats) uint64 { return m.Cut }),
	)
}

// redisStats has the stats of a Redis store and its name, which is empty for --store.
type redisStats struct {
	name string
	redisstore.Stats
}

func redisMetrics(each iter.Seq[redisStats]) metric.Group {
	return metric.Each(each,
		metric.Histograms("weir_store_batch_requests", "store",
			"Requests per script call: the count is calls, the sum requests.",
			func(r redisStats, w metric.Writer) {
				w.Histogram(r.Calls, float64(r.Requests), nil, metric.Store(r.name))
			}),
		metric.Counters("weir_store_script_loads_total", "store",
			"Script calls repeated with the script's text, because Redis did not have the script.",
			func(r redisStats, w metric.Writer) { metric.Put(w, r.Texts, metric.Store(r.name)) }),
		metric.Counters("weir_store_restarted_counters_total", "store",
			"Counters started again, because their value in Redis cannot be read.",
			func(r redisStats, w metric.Writer) { metric.Put(w, r.Restarted, metric.Store(r.name)) }),
		metric.Counters("weir_store_cut_counters_total", "store",
			"Counters cut to full, because a rule was edited or Redis's clock was set back.",
			func(r redisStats, w metric.Writer) { metric.Put(w, r.Cut, metric.Store(r.name)) }),
		metric.Gauges("weir_store_pool_connections", "store state", "Open connections. state: idle, used.",
			func(r redisStats, w metric.Writer) {
				metric.Put(w, r.Pool.IdleConns, metric.Store(r.name), "idle")
				metric.Put(w, r.Pool.TotalConns-r.Pool.IdleConns, metric.Store(r.name), "used")
			}),
		metric.Counters("weir_store_pool_gets_total", "store result",
			"Connections requested from the pool. result: found (idle), made, timeout.",
			func(r redisStats, w metric.Writer) {
				metric.Put(w, r.Pool.Hits, metric.Store(r.name), "found")
				metric.Put(w, r.Pool.Misses, metric.Store(r.name), "made")
				metric.Put(w, r.Pool.Timeouts, metric.Store(r.name), "timeout")
			}),
		metric.Counters("weir_store_pool_waits_total", "store",
			"Script calls that waited for a free connection.",
			func(r redisStats, w metric.Writer) { metric.Put(w, r.Pool.WaitCount, metric.Store(r.name)) }),
		metric.Counters("weir_store_pool_stale_total", "store",
			"Closed connections: idle, old or broken.",
			func(r redisStats, w metric.Writer) { metric.Put(w, r.Pool.StaleConns, metric.Store(r.name)) }),
	)
}

func leaseMetrics(each iter.Seq[guard.LeaseStats]) metric.Group {
	return metric.Each(each,
		metric.Gauge("weir_lease_counters", "Counters with a lease of this process.",
			func(s guard.LeaseStats) int { return s.Keys }),
		metric.Gauge("weir_lease_permits", "Permits on lease: charged in Redis, not yet spent or released.",
			func(s guard.LeaseStats) int64 { return s.Permits }),
		metric.Counter("weir_lease_answers_total", "Requests decided by leases, without Redis.",
			func(s guard.LeaseStats) uint64 { return s.Answers }),
		metric.Counter("weir_lease_permits_acquired_total", "Permits acquired.",
			func(s guard.LeaseStats) uint64 { return s.Acquired }),
		metric.Counter("weir_lease_permits_released_total", "Permits released unspent.",
			func(s guard.LeaseStats) uint64 { return s.Released }),
		metric.Counter("weir_lease_permits_lost_total",
			"Permits lost, because Redis did not respond or their window was about to end.",
			func(s guard.LeaseStats) uint64 { return s.Lost }),
	)
}

// withCredentials yields the connections whose user or password may change.
func (s *Store) withCredentials(yield func(*Redis) bool) {
	for _, r := range s.clients {
		if r.credentials.change() && !yield(r) {
			return
		}
	}
}

func (s *Store) eachRedis(yield func(redisStats) bool) {
	for _, r := range s.remotes {
		if !yield(redisStats{r.name, r.store.Stats()}) {
			return
		}
	}
}

func (s *Store) eachMemory(yield func(memoryStats) bool) {
	if s.memory != nil {
		yield(memoryStats{s.memory.Stats(), s.maxCounters})
	}
}

func (s *Store) eachLeases(yield func(guard.LeaseStats) bool) {
	if s.Leases != nil {
		yield(s.Leases.Stats())
	}
}
