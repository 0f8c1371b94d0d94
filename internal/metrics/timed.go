package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// severalStores labels a request that asks several stores; no named store has parentheses in its name.
const severalStores = "(several)"

// Timed returns the store with its calls measured, under the names of its stores; "" is the first. It needs at least
// one name. It is for a store behind a network: memory decides in less time than it takes to read the clock.
func (m *Metrics) Timed(store limiter.Store, names ...string) limiter.Store {
	t := &timedStore{Store: store, named: map[string]prometheus.Observer{}}
	for _, name := range names {
		t.several = m.takeSeconds.WithLabelValues(storeLabel(name))
		t.named[name] = t.several
	}
	if len(names) > 1 {
		t.several = m.takeSeconds.WithLabelValues(severalStores)
	}
	return t
}

type timedStore struct {
	limiter.Store
	named   map[string]prometheus.Observer
	several prometheus.Observer // with one store: its own
}

// Take implements limiter.Store.
func (t *timedStore) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	if guard.IsBackground(ctx) {
		return t.Store.Take(ctx, hits, out)
	}
	start := time.Now()
	err := t.Store.Take(ctx, hits, out)
	t.histogramOf(hits).Observe(time.Since(start).Seconds())
	return err
}

// histogramOf returns the histogram of the store that has the hits.
func (t *timedStore) histogramOf(hits []limiter.Hit) prometheus.Observer {
	if len(hits) == 0 {
		return t.several
	}
	name := guard.StoreName(&hits[0])
	for i := range hits {
		if guard.StoreName(&hits[i]) != name {
			return t.several
		}
	}
	if histogram := t.named[name]; histogram != nil {
		return histogram
	}
	return t.several // no store has the name: the call failed
}
