package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// WatchPolicy shows for how long each rule's on_store_failure has decided in place of a store. It is called once, and
// seconds at every scrape, which returns all stores by their names; that of --store is empty.
func (m *Metrics) WatchPolicy(seconds func() map[string]time.Duration) error {
	return m.registry.Register(&policies{seconds, prometheus.NewDesc("weir_store_policy_seconds",
		"How long on_store_failure has been deciding requests in place of this Redis; 0 while Redis decides. "+
			"Alert above 60. Redis only.", []string{"store"}, nil)})
}

type policies struct {
	seconds func() map[string]time.Duration
	desc    *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *policies) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements prometheus.Collector.
func (c *policies) Collect(ch chan<- prometheus.Metric) {
	for store, d := range c.seconds() {
		if store == "" {
			store = "(default)" // no name of a limit has parentheses
		}
		ch <- gauge(c.desc, d.Seconds(), store)
	}
}
