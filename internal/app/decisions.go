package app

import (
	"context"
	"fmt"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/decisionlog"
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/internal/store"
)

func (a *App) openDecider(context.Context) (err error) {
	watchers := a.telemetry.Watchers()
	if a.top != nil {
		watchers = append(watchers, a.top)
	}
	if a.decisionLog != nil {
		watchers = append(watchers, a.decisionLog)
	}
	var headers decide.LimitHeaders
	if o := a.o.HeaderOptions; o.RatelimitHeaders {
		headers = decide.LimitHeaders{
			Limit: o.RatelimitLimitHeader, Remaining: o.RatelimitRemainingHeader, Reset: o.RatelimitResetHeader,
		}
	}
	a.decider, err = decide.New(decide.Options{
		Rules:          a.rules.Set,
		Store:          a.store,
		Local:          a.store.Fallback(),
		Boosts:         a.boosts.Limits,
		Observer:       observer{a.metrics, a.store},
		Watchers:       watchers,
		LimitHeaders:   headers,
		MaxDescriptors: a.o.MaxDescriptors,
		MaxDelayed:     a.o.MaxHeld,
		MaxEntries:     a.o.MaxEntries,
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

func (a *App) openDecisionLog(context.Context) (err error) {
	if a.o.DecisionLog == "" {
		return nil
	}
	var key []byte
	if file := a.o.DecisionLogKeyFile; file != "" {
		if key, err = decisionlog.ReadKey(file); err != nil { //nolint:contextcheck // one read with a deadline of its own
			return fmt.Errorf("--decision-log-key-file: %w", err)
		}
	}
	a.decisionLog, err = decisionlog.New(decisionlog.Options{
		To: a.o.DecisionLog, Sample: a.o.DecisionLogSample, SampleDenied: a.o.DecisionLogSampleDenied,
		Rate:   a.o.DecisionLogRate,
		Values: decisionlog.Values(a.o.DecisionLogValues), Key: key, Log: a.o.Log,
	})
	if err != nil {
		return err
	}
	a.metrics.DecisionLog.From(a.decisionLog.Stats)
	a.add("decision log", nil, func() error {
		a.decisionLog.Close()
		return nil
	})
	return nil
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
