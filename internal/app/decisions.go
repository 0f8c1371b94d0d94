package app

import (
	"context"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/internal/store"
)

func (a *App) openDecider(context.Context) (err error) {
	watchers := a.telemetry.Watchers()
	if a.top != nil {
		watchers = append(watchers, a.top)
	}
	var headers decide.LimitHeaders
	if a.o.RatelimitHeaders {
		headers = a.o.LimitHeaders
	}
	a.decider, err = decide.New(decide.Options{
		Rules:          a.rules.Set,
		Store:          a.store,
		Local:          a.store.Fallback(),
		Observer:       observer{a.metrics, a.store},
		Watchers:       watchers,
		LimitHeaders:   headers,
		MaxDescriptors: a.o.MaxDescriptors,
		MaxDelayed:     a.o.MaxHeld,
		MaxCounters:    a.o.MaxCounters,
		ChargeEach:     a.o.ChargeEach,
		NoRetryAfter:   !a.o.RetryAfter,
		Lenient:        a.o.LenientRules,
	})
	if err == nil {
		a.metrics.Delayed.From(a.decider.Delayed)
	}
	return err
}

// observer counts for Prometheus, and reports failures of the store to it.
type observer struct {
	*metrics.Metrics
	store *store.Store
}

func (o observer) StoreFailed(err error) {
	o.Metrics.StoreFailed(err)
	o.store.Failed(err)
}
