package metrics

import "github.com/prometheus/client_golang/prometheus"

// PublishedStats is what is known of the rules in Redis at a scrape.
type PublishedStats struct {
	Version, Newest uint64
	Reachable       bool
}

// WatchPublished shows the rules in Redis. It is called once, and stats at every scrape.
func (m *Metrics) WatchPublished(stats func() PublishedStats) error {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }
	return m.registry.Register(&published{
		stats:     stats,
		version:   desc("weir_rules_published_version", "Version of the published rules that are live, 0 while there are none."),
		newest:    desc("weir_rules_published_newest_version", "Version of the published rules that was read last; another than the live one was refused."),
		reachable: desc("weir_rules_published_reachable", "1 if Redis could be asked for published rules at the last look, else 0."),
	})
}

type published struct {
	stats                      func() PublishedStats
	version, newest, reachable *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *published) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.version, c.newest, c.reachable} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *published) Collect(ch chan<- prometheus.Metric) {
	s := c.stats()
	ch <- gauge(c.version, float64(s.Version))
	ch <- gauge(c.newest, float64(s.Newest))
	reachable := 0.0
	if s.Reachable {
		reachable = 1
	}
	ch <- gauge(c.reachable, reachable)
}
