package metrics

import "github.com/prometheus/client_golang/prometheus"

// StoreStats is what a Redis store tells at a scrape.
type StoreStats struct {
	Name       string             // as limits call it; empty for --store
	BatchSizes map[float64]uint64 // script calls of up to so many requests
	Calls      uint64             // script calls
	Requests   uint64             // that they carried
	Texts      uint64             // calls made again with the script's text
	Restarted  uint64             // counters that started again

	Connections, Idle                   int
	Found, Made, Waits, Timeouts, Stale uint64
}

// WatchStores shows the calls and connections to each Redis. It is called once, and stats at every scrape.
func (m *Metrics) WatchStores(stats func() []StoreStats) error {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help+" Redis only.", append([]string{"store"}, labels...), nil)
	}
	return m.registry.Register(&stores{
		stats: stats,
		batches: desc("weir_store_batch_requests",
			"Requests that share a script call; the count is the script calls, the sum the requests."),
		texts: desc("weir_store_script_loads_total", "Script calls made again with the script's text, since Redis did not know it."),
		restarted: desc("weir_store_restarted_counters_total",
			"Counters that started again, since what was in Redis cannot be of Weir: it cannot be read, or lies too far in the future."),
		connections: desc("weir_store_pool_connections", "Open connections. state: idle, used.", "state"),
		asked:       desc("weir_store_pool_gets_total", "Connections asked of the pool. result: found (an idle one), made, timeout.", "result"),
		waits:       desc("weir_store_pool_waits_total", "Calls that had to wait for a connection, since all were used."),
		stale:       desc("weir_store_pool_stale_total", "Connections closed since they were idle, old or broken."),
	})
}

// storeLabel is a store's name as a label.
func storeLabel(name string) string {
	if name == "" {
		return "(default)" // no name of a limit has parentheses
	}
	return name
}

type stores struct {
	stats                                                       func() []StoreStats
	batches, texts, restarted, connections, asked, waits, stale *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *stores) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.batches, c.texts, c.restarted, c.connections, c.asked, c.waits, c.stale} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *stores) Collect(ch chan<- prometheus.Metric) {
	for _, s := range c.stats() {
		name := storeLabel(s.Name)
		ch <- histogram(c.batches, s.Calls, float64(s.Requests), s.BatchSizes, name)
		ch <- counter(c.texts, s.Texts, name)
		ch <- counter(c.restarted, s.Restarted, name)
		ch <- gauge(c.connections, float64(s.Idle), name, "idle")
		ch <- gauge(c.connections, float64(s.Connections-s.Idle), name, "used")
		ch <- counter(c.asked, s.Found, name, "found")
		ch <- counter(c.asked, s.Made, name, "made")
		ch <- counter(c.asked, s.Timeouts, name, "timeout")
		ch <- counter(c.waits, s.Waits, name)
		ch <- counter(c.stale, s.Stale, name)
	}
}

func histogram(d *prometheus.Desc, count uint64, sum float64, upTo map[float64]uint64, labels ...string) prometheus.Metric {
	m, err := prometheus.NewConstHistogram(d, count, sum, upTo, labels...)
	if err != nil {
		return prometheus.NewInvalidMetric(d, err)
	}
	return m
}
