package metrics

import "github.com/prometheus/client_golang/prometheus"

// MemoryStats is what the memory store tells at a scrape.
type MemoryStats struct {
	Keys, MaxKeys    int
	Bytes            int64
	Expired, Evicted uint64
	ClockSteps       uint64
}

// WatchMemory shows the memory store. It is called once, and stats at every scrape.
func (m *Metrics) WatchMemory(stats func() MemoryStats) error {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }
	return m.registry.Register(&memory{
		stats:   stats,
		keys:    desc("weir_memory_keys", "Counters in the memory store, including those that expired and are not yet freed."),
		maxKeys: desc("weir_memory_max_keys", "Most counters that the memory store keeps."),
		bytes:   desc("weir_memory_bytes", "About the bytes that the counters take."),
		expired: desc("weir_memory_keys_expired_total", "Counters freed because they no longer mattered."),
		evicted: desc("weir_memory_keys_evicted_total",
			"Counters forgotten at the bound though they mattered: limits may have been exceeded."),
		clockSteps: desc("weir_memory_clock_steps_total",
			"How often fixed windows on the clock followed a wall clock that was set, as by a time server or when a machine resumes."),
	})
}

type memory struct {
	stats                                  func() MemoryStats
	keys, maxKeys, bytes, expired, evicted *prometheus.Desc
	clockSteps                             *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *memory) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.keys, c.maxKeys, c.bytes, c.expired, c.evicted, c.clockSteps} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *memory) Collect(ch chan<- prometheus.Metric) {
	s := c.stats()
	ch <- gauge(c.keys, float64(s.Keys))
	ch <- gauge(c.maxKeys, float64(s.MaxKeys))
	ch <- gauge(c.bytes, float64(s.Bytes))
	ch <- counter(c.expired, s.Expired)
	ch <- counter(c.evicted, s.Evicted)
	ch <- counter(c.clockSteps, s.ClockSteps)
}
