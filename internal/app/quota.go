package app

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/internal/rlqs"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Bounds of the age of a connection with quota streams. gRPC asks a client to leave at between 0.9 and 1.1 of the age,
// and cuts it off after a grace. A stream ends between the two, after a report, so that its usage is known.
const (
	quotaLeave = 1100 // thousandths of --grpc-max-connection-age, at which a stream ends after its next report
	quotaGrace = 200  // thousandths, besides maxAgeGrace, until the connection is cut off
)

// quotas are the parts that assign quotas to Envoys.
type quotas struct {
	keeper   *rlqs.Keeper
	resolver *rlqs.RulesResolver
	service  *rlqs.Service
}

// openQuotas makes what --quota switches on.
func (a *App) openQuotas(context.Context) (err error) {
	if !a.o.Quota || a.o.Embedded {
		return nil
	}
	q := &quotas{}
	q.resolver, err = rlqs.NewResolver(rlqs.RulesOptions{
		Rules: a.rules.Set, Decider: a.decider,
	})
	if err != nil {
		return err
	}
	o := rlqs.Options{
		Store: a.store, Resolver: q.resolver, TTL: a.o.QuotaTTL, MaxBuckets: a.o.QuotaMaxBuckets,
		Timeout: a.o.storeTimeout(), Logger: a.o.Log, Decided: a.decidedByEnvoys,
	}
	if a.store.Breaker != nil {
		o.Server = func(h *limiter.Hit) any { return a.store.Breaker.Shard(h) }
	}
	q.keeper, err = rlqs.New(o)
	if err != nil {
		return err
	}
	q.service, err = rlqs.NewService(rlqs.ServiceOptions{
		Keeper: q.keeper, MaxStreams: a.o.QuotaMaxStreams,
		MaxAge: a.o.GRPCMaxConnectionAge * quotaLeave / 1000,
		Opened: a.clients.grpc.Opened, Panicked: a.metrics.Panicked, Reported: a.metrics.AnsweredByEnvoys, Log: a.o.Log,
	})
	if err != nil {
		return err
	}
	a.quotas.Store(q)
	a.metrics.Quotas.From(func() metrics.QuotaStats {
		return metrics.QuotaStats{Keeper: q.keeper.Stats(), Service: q.service.Stats()}
	})
	a.add("quotas", q.keeper.Run, nil)
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

// quotasChanged has all assignments made again, after rules, boosts or a counter changed.
func (a *App) quotasChanged() {
	if q := a.quotas.Load(); q != nil {
		q.keeper.Changed()
	}
}

// stopQuotas charges what Envoys may still let pass, and ends their streams, for which a stop would wait.
func (a *App) stopQuotas(ctx context.Context) {
	q := a.quotas.Load()
	if q == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, a.o.storeTimeout()+lastSend)
	defer cancel()
	q.keeper.Stop(ctx)
	q.service.Stop()
}

// registerQuotas makes a server answer quota streams.
func (a *App) registerQuotas(on *grpc.Server) {
	if q := a.quotas.Load(); q != nil {
		q.service.Register(on)
	}
}

// ageGrace is how long the requests of a connection that has reached its age have to end.
func (o *Options) ageGrace() time.Duration {
	if !o.Quota {
		return maxAgeGrace
	}
	return maxAgeGrace + o.GRPCMaxConnectionAge*quotaGrace/1000
}

// listed is the most buckets that are looked through for GET /quotas and GET /keys/get.
const listed = 10_000

var strategies = map[rlqs.Strategy]string{
	rlqs.AllowAll: "allow_all", rlqs.DenyAll: "deny_all", rlqs.TokenBucket: "token_bucket",
}

// Status implements admin.Quotas.
func (q *quotas) Status() adminapi.QuotaStatus {
	s := q.keeper.Stats()
	return adminapi.QuotaStatus{
		Streams: s.Streams, Broken: s.Broken, Buckets: s.Buckets, Refused: s.Refused, Uncharged: s.Over, Debt: s.Debt,
	}
}

// List implements admin.Quotas: what Envoys have now.
func (q *quotas) List(query admin.QuotaQuery) *adminapi.QuotaList {
	s := q.Status()
	all := &adminapi.QuotaList{
		Streams: s.Streams, Broken: s.Broken, Count: s.Buckets, Refused: s.Refused, Uncharged: s.Uncharged, Debt: s.Debt,
		Buckets: []adminapi.Quota{}, Envoys: q.envoys(query.N),
	}
	buckets := slices.DeleteFunc(q.keeper.Buckets(listed), func(b rlqs.BucketInfo) bool {
		return query.Domain != "" && b.Domain != query.Domain ||
			query.Rule != "" && (b.Rule == nil || b.Rule.Path != query.Rule)
	})
	slices.SortFunc(buckets, func(a, b rlqs.BucketInfo) int {
		first := cmp.Compare(b.Rate, a.Rate)
		if query.By == adminapi.ByMissing {
			first = cmp.Compare(missing(&b), missing(&a))
		}
		return cmp.Or(first, cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Node, b.Node))
	})
	all.Found = len(buckets)
	for i := range buckets[:min(query.N, len(buckets))] {
		all.Buckets = append(all.Buckets, show(&buckets[i]))
	}
	return all
}

// missing is how many requests a second a bucket wants and does not get.
func missing(b *rlqs.BucketInfo) float64 {
	switch {
	case b.Refused != "":
		return math.Inf(1)
	case b.Assigned && b.Assignment.Strategy == rlqs.AllowAll:
		return 0
	default:
		return max(0, b.Want-b.Rate)
	}
}

func show(b *rlqs.BucketInfo) adminapi.Quota {
	shown := adminapi.Quota{
		Domain: b.Domain, Node: b.Node, Wanted: b.Want, Passed: b.PassRate, ReportAge: b.ReportAge.Seconds(),
		Broken: b.Broken, Refused: b.Refused, Strategy: "none", State: stateOf(b), Entries: []descriptors.Entry{},
	}
	entries, _ := b.ID.Entries() // it has been checked
	shown.Descriptor = descriptors.FormatEntries(entries)
	shown.Entries = append(shown.Entries, entries...)
	if b.Rule != nil {
		shown.Rule = b.Rule.Path
		for _, l := range b.Rule.Limits {
			shown.Limits = append(shown.Limits, l.String())
		}
	}
	if b.Assigned {
		shown.Strategy, shown.Rate, shown.Expires = strategies[b.Assignment.Strategy], b.Rate, b.Expires.Seconds()
		shown.MaxTokens = b.Assignment.MaxTokens
	}
	return shown
}

// stateOf is a bucket's state as adminapi.Quota has it.
func stateOf(b *rlqs.BucketInfo) string {
	switch {
	case b.Refused != "":
		return "refused"
	case b.Broken:
		return "broken"
	case !b.Assigned:
		return "waiting"
	case b.Failing:
		return "failing"
	case b.Shadow:
		return "shadow"
	case b.Assignment.Strategy == rlqs.AllowAll:
		return "unlimited"
	case len(b.Keys) == 0:
		return "denied"
	case b.Contended:
		return "contended"
	default:
		return "assigned"
	}
}

// envoys are the streams with most buckets.
func (q *quotas) envoys(n int) []adminapi.QuotaEnvoy {
	all := []adminapi.QuotaEnvoy{}
	for _, s := range q.keeper.Streams(listed) {
		all = append(all, adminapi.QuotaEnvoy{
			Domain: s.Domain, Node: s.Node, Buckets: s.Buckets, Refused: s.Refused, Rate: s.Rate, Wanted: s.Want,
			Passed: s.PassRate, ReportAge: s.ReportAge.Seconds(), Broken: s.Broken,
		})
	}
	slices.SortFunc(all, func(a, b adminapi.QuotaEnvoy) int {
		return cmp.Or(cmp.Compare(b.Buckets, a.Buckets), cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Node, b.Node))
	})
	return all[:min(n, len(all))]
}

// of is what Envoys have of one counter, nil if nothing.
func (q *quotas) of(key string) *adminapi.KeyQuotas {
	var of adminapi.KeyQuotas
	for _, b := range q.keeper.Buckets(listed) {
		if b.Assigned && slices.Contains(b.Keys, key) {
			of.Envoys++
			of.Rate += b.Rate
			of.Burst += int64(b.Assignment.MaxTokens)
		}
	}
	if of.Envoys == 0 {
		return nil
	}
	return &of
}
