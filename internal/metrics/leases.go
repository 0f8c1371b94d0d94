package metrics

import "github.com/prometheus/client_golang/prometheus"

// LeaseStats is what leases tell at a scrape.
type LeaseStats struct {
	Keys                           int
	Permits                        int64
	Answers, Taken, Returned, Lost uint64
}

// WatchLeases shows the permits that this process has taken ahead. It is called once, and stats at every scrape.
func (m *Metrics) WatchLeases(stats func() LeaseStats) error {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }
	return m.registry.Register(&leases{
		stats:    stats,
		keys:     desc("weir_lease_keys", "Counters that this process takes permits ahead for."),
		permits:  desc("weir_lease_permits", "Permits on lease: charged in Redis, and neither spent nor given back."),
		answers:  desc("weir_lease_answers_total", "Requests that were decided by leases, without Redis."),
		taken:    desc("weir_lease_permits_taken_total", "Permits taken ahead."),
		returned: desc("weir_lease_permits_returned_total", "Permits given back unspent."),
		lost: desc("weir_lease_permits_lost_total",
			"Permits neither spent nor given back: Redis did not answer, or their window was about to end."),
	})
}

type leases struct {
	stats                                         func() LeaseStats
	keys, permits, answers, taken, returned, lost *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *leases) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.keys, c.permits, c.answers, c.taken, c.returned, c.lost} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *leases) Collect(ch chan<- prometheus.Metric) {
	s := c.stats()
	ch <- gauge(c.keys, float64(s.Keys))
	ch <- gauge(c.permits, float64(s.Permits))
	ch <- counter(c.answers, s.Answers)
	ch <- counter(c.taken, s.Taken)
	ch <- counter(c.returned, s.Returned)
	ch <- counter(c.lost, s.Lost)
}
