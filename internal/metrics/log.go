package metrics

import "github.com/prometheus/client_golang/prometheus"

// LogStats is what the process's own log reports at a scrape: lines that were dropped since the start.
type LogStats struct {
	FullBuffer uint64 // lines came faster than they were read
	NotWritten uint64 // the stream took no more
}

// WatchLog shows what the process's log dropped. It is called once, and stats at every scrape.
func (m *Metrics) WatchLog(stats func() LogStats) error {
	return m.registry.Register(&processLog{
		stats: stats,
		dropped: prometheus.NewDesc("weir_log_dropped_total",
			"Lines of the process's own log that were dropped. reason: buffer (standard error is read too slowly, or not at all), "+
				"write_error (nobody reads it, or a full disk).", []string{"reason"}, nil),
	})
}

type processLog struct {
	stats   func() LogStats
	dropped *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *processLog) Describe(ch chan<- *prometheus.Desc) { ch <- c.dropped }

// Collect implements prometheus.Collector.
func (c *processLog) Collect(ch chan<- prometheus.Metric) {
	s := c.stats()
	ch <- counter(c.dropped, s.FullBuffer, "buffer")
	ch <- counter(c.dropped, s.NotWritten, "write_error")
}
