package metrics

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// ClientStats is what one listener has seen of its clients.
type ClientStats struct {
	// Listener is grpc or http.
	Listener string
	// Open is the connections now, Max the most there may be.
	Open, Max int
	// Receiving is the memory of requests that have not arrived whole, in bytes.
	Receiving int64
	// Refused is how much was refused or closed, by reason.
	Refused map[string]uint64
}

// WatchClients shows connections, and what was refused of them. It is called once, and stats at every scrape.
func (m *Metrics) WatchClients(stats func() []ClientStats) error {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return m.registry.Register(&clients{
		stats:     stats,
		open:      desc("weir_connections", "Open connections. listener: grpc, http.", "listener"),
		most:      desc("weir_connections_max", "Most connections at once. listener: grpc, http.", "listener"),
		receiving: desc("weir_receiving_bytes", "Memory of gRPC requests that have not arrived whole; --grpc-max-receiving bounds it."),
		refused: desc("weir_clients_refused_total", "Connections closed and requests reset, since a bound was reached. listener: grpc, http; "+
			"reason: full (a new connection, while all others were busy), idle (an idle one, for a new one), slow (--grpc-receive-timeout), "+
			"memory (--grpc-max-receiving), resets (--grpc-max-resets), unread (the client did not read).", "listener", "reason"),
	})
}

type clients struct {
	stats                          func() []ClientStats
	open, most, receiving, refused *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *clients) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.open, c.most, c.receiving, c.refused} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *clients) Collect(ch chan<- prometheus.Metric) {
	for _, s := range c.stats() {
		ch <- gauge(c.open, float64(s.Open), s.Listener)
		ch <- gauge(c.most, float64(s.Max), s.Listener)
		for _, reason := range slices.Sorted(maps.Keys(s.Refused)) {
			ch <- prometheus.MustNewConstMetric(c.refused, prometheus.CounterValue, float64(s.Refused[reason]), s.Listener, reason)
		}
		if s.Listener == "grpc" {
			ch <- gauge(c.receiving, float64(s.Receiving))
		}
	}
}
