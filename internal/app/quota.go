package app

import (
	"context"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/rlqs"
)

// openQuotas makes what --quota switches on.
func (a *App) openQuotas(context.Context) error {
	if !a.o.Quota || a.o.Embedded {
		return nil
	}
	k, err := rlqs.New(rlqs.Options{
		Store: a.store, Resolve: rlqs.Resolver(a.rules.Set, a.decider), TTL: a.o.QuotaTTL,
		Logger: a.o.Log, Decided: a.decidedByEnvoys,
	})
	if err != nil {
		return err
	}
	a.quotas.Store(k)
	a.metrics.Quotas.From(k.Stats)
	a.add("quotas", k.Run, nil)
	return nil
}

// decidedByEnvoys counts what Envoys reported, for metrics and for the busiest keys.
func (a *App) decidedByEnvoys(d rlqs.Decided) {
	a.metrics.DecidedByEnvoys(d.Limit, d.Outcome, d.Requests)
	if a.top != nil && d.IsFirst {
		a.top.Add(d.Limit, d.Key, d.Requests, d.Outcome.Unfit() || d.Outcome == decide.Uncharged)
	}
}

// quotasChanged has all assignments made again, after rules changed or a counter was reset.
func (a *App) quotasChanged() {
	if k := a.quotas.Load(); k != nil {
		k.Changed()
	}
}

// stopQuotas charges what Envoys may still admit, and ends their streams, for which a stop would wait.
func (a *App) stopQuotas(ctx context.Context) {
	if k := a.quotas.Load(); k != nil {
		ctx, cancel := context.WithTimeout(ctx, a.o.MaxWait()+lastSend)
		defer cancel()
		k.Stop(ctx)
	}
}

// reset removes a counter, with what was charged ahead to it.
func (a *App) reset(ctx context.Context, key string) (existed bool, err error) {
	existed, err = a.store.Reset(ctx, key)
	a.quotasChanged()
	return existed, err
}
