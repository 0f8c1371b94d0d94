package app

import (
	"cmp"
	"context"
	"slices"

	quotapb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/rlqs"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// quotas assign parts of limits to Envoys.
type quotas struct{ *rlqs.Keeper }

// openQuotas makes what --quota switches on.
func (a *App) openQuotas(context.Context) error {
	if !a.o.Quota || a.o.Embedded {
		return nil
	}
	o := rlqs.Options{
		Store: a.store, Resolver: rlqs.NewResolver(a.rules.Set, a.decider), TTL: a.o.QuotaTTL,
		Timeout: a.o.MaxWait(), Logger: a.o.Log, Decided: a.decidedByEnvoys,
	}
	if a.store.Breaker != nil {
		o.Server = func(h *limiter.Hit) any { return a.store.Breaker.Shard(h) }
	}
	k, err := rlqs.New(o)
	if err != nil {
		return err
	}
	a.quotas.Store(&quotas{k})
	a.metrics.Quotas.From(k.Stats)
	a.add("quotas", k.Run, nil)
	return nil
}

// decidedByEnvoys counts what Envoys reported, for metrics and for the busiest keys.
func (a *App) decidedByEnvoys(all []rlqs.Decided) {
	for i := range all {
		d := &all[i]
		a.metrics.DecidedByEnvoys(d.Limit, d.Outcome, d.Requests)
		if a.top != nil && d.IsFirst {
			a.top.Add(d.Limit, d.Key, d.Requests, d.Outcome.Unfit() || d.Outcome == decide.Uncharged)
		}
	}
}

// quotasChanged has all assignments made again, after rules changed or a counter was reset.
func (a *App) quotasChanged() {
	if q := a.quotas.Load(); q != nil {
		q.Changed()
	}
}

// stopQuotas charges what Envoys may still admit, and ends their streams, for which a stop would wait.
func (a *App) stopQuotas(ctx context.Context) {
	q := a.quotas.Load()
	if q == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, a.o.MaxWait()+lastSend)
	defer cancel()
	q.Stop(ctx)
}

// registerQuotas makes a server answer quota streams.
func (a *App) registerQuotas(on *grpc.Server) {
	if q := a.quotas.Load(); q != nil {
		quotapb.RegisterRateLimitQuotaServiceServer(on, q)
	}
}

// Status implements admin.Quotas.
func (q *quotas) Status() adminapi.QuotaStatus {
	s := q.Stats()
	return adminapi.QuotaStatus{Streams: s.Streams, Broken: s.Broken, Buckets: s.Buckets, Uncharged: s.Over, Debt: s.Debt}
}

// List implements admin.Quotas.
func (q *quotas) List(domain, rule string, n int) *adminapi.QuotaList {
	all := &adminapi.QuotaList{QuotaStatus: q.Status(), Buckets: []adminapi.Quota{}}
	found := slices.DeleteFunc(q.Buckets(), func(b *adminapi.Quota) bool {
		return domain != "" && b.Domain != domain || rule != "" && b.Rule != rule
	})
	missing := func(b *adminapi.Quota) float64 {
		if b.State != string(rlqs.Contended) {
			return 0
		}
		return b.Wanted - b.Rate
	}
	slices.SortFunc(found, func(a, b *adminapi.Quota) int {
		return cmp.Or(cmp.Compare(missing(b), missing(a)), cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.Domain, b.Domain),
			cmp.Compare(a.Descriptor, b.Descriptor))
	})
	all.Found = len(found)
	for _, b := range found[:min(n, len(found))] {
		b.Entries, _ = rlqs.BucketID(b.Descriptor).Entries() // it has been checked
		all.Buckets = append(all.Buckets, *b)
	}
	return all
}

// reset removes a counter, with what was charged ahead to it.
func (a *App) reset(ctx context.Context, key string) (existed bool, err error) {
	existed, err = a.store.Reset(ctx, key)
	a.quotasChanged()
	return existed, err
}
