package metrics

import "github.com/prometheus/client_golang/prometheus"

// WatchBoosts shows the boosts. It is called once, and stats at every scrape: how many are in force, and whether the store of
// them could be read at the last look.
func (m *Metrics) WatchBoosts(stats func() (inForce int, reachable bool)) error {
	return m.registry.Register(&boosts{
		stats:     stats,
		inForce:   prometheus.NewDesc("weir_boosts", "Boosts that are in force: temporary factors on limits.", nil, nil),
		reachable: prometheus.NewDesc("weir_boosts_reachable", "1 if Redis could be asked for boosts at the last look, else 0.", nil, nil),
	})
}

type boosts struct {
	stats              func() (int, bool)
	inForce, reachable *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *boosts) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.inForce
	ch <- c.reachable
}

// Collect implements prometheus.Collector.
func (c *boosts) Collect(ch chan<- prometheus.Metric) {
	n, reachable := c.stats()
	ch <- gauge(c.inForce, float64(n))
	value := 0.0
	if reachable {
		value = 1
	}
	ch <- gauge(c.reachable, value)
}
