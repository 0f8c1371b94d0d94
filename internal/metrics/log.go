package metrics

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

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

// WatchFiles shows how many files hang. It is called once, and hung at every scrape.
func (m *Metrics) WatchFiles(hung func() int) error {
	return m.registry.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "weir_file_reads_hung",
		Help: "How many reads of files (rules, values, certificates, passwords) have not returned for more than 10 s, since a " +
			"file system hangs: alert on it.",
	}, func() float64 { return float64(hung()) }))
}

// WatchHandshakes shows the TLS handshakes that failed, by listener. It is called once, and failed at every scrape.
func (m *Metrics) WatchHandshakes(failed map[string]func() uint64) error {
	var errs []error
	for listener, n := range failed {
		errs = append(errs, m.registry.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name:        "weir_tls_handshakes_failed_total",
			Help:        "TLS handshakes that failed. listener: grpc, http. One in 10 s is logged.",
			ConstLabels: prometheus.Labels{"listener": listener},
		}, func() float64 { return float64(n()) })))
	}
	return errors.Join(errs...)
}
