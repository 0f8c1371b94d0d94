package metrics

import "github.com/prometheus/client_golang/prometheus"

// DecisionLogStats is what the decision log tells at a scrape: lines since the start.
type DecisionLogStats struct {
	Written uint64
	Dropped map[string]uint64 // by reason
}

// WatchDecisionLog shows the decision log. It is called once, and stats at every scrape.
func (m *Metrics) WatchDecisionLog(stats func() DecisionLogStats) error {
	return m.registry.Register(&decisionLog{
		stats:   stats,
		written: prometheus.NewDesc("weir_decision_log_lines_total", "Lines written to the log of decisions. With --decision-log only.", nil, nil),
		dropped: prometheus.NewDesc("weir_decision_log_dropped_total",
			"Sampled decisions that were not written. reason: rate (above --decision-log-rate), buffer (read too slowly), "+
				"write_error (a full disk, or the like).", []string{"reason"}, nil),
	})
}

type decisionLog struct {
	stats            func() DecisionLogStats
	written, dropped *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *decisionLog) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.written
	ch <- c.dropped
}

// Collect implements prometheus.Collector.
func (c *decisionLog) Collect(ch chan<- prometheus.Metric) {
	s := c.stats()
	ch <- counter(c.written, s.Written)
	for reason, n := range s.Dropped {
		ch <- counter(c.dropped, n, reason)
	}
}
