package metrics

import "github.com/prometheus/client_golang/prometheus"

// HeldStats is what is told of held answers at a scrape.
type HeldStats struct {
	Now     int64
	Refused uint64
}

// WatchHeld shows the answers that are held back. It is called once, and stats at every scrape.
func (m *Metrics) WatchHeld(stats func() HeldStats) error {
	now := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "weir_held_answers",
		Help: "Requests under way whose answers leaky_queue or max_wait may hold back; --max-held bounds them.",
	}, func() float64 { return float64(stats().Now) })
	refused := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "weir_held_refused_total",
		Help: "Requests denied uncharged, since --max-held answers were held back.",
	}, func() float64 { return float64(stats().Refused) })
	if err := m.registry.Register(now); err != nil {
		return err
	}
	return m.registry.Register(refused)
}
