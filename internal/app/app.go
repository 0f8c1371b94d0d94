// Package app is the Weir process: it opens its parts, serves, and stops them in order.
package app

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/admin/topkeys"
	"github.com/weir-ratelimit/weir/internal/conns"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/grpcserver"
	"github.com/weir-ratelimit/weir/internal/listen"
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/internal/metrics/metric"
	"github.com/weir-ratelimit/weir/internal/metrics/telemetry"
	"github.com/weir-ratelimit/weir/internal/offline/explain"
	"github.com/weir-ratelimit/weir/internal/rlqs"
	"github.com/weir-ratelimit/weir/internal/rls"
	"github.com/weir-ratelimit/weir/internal/rules"
	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/internal/take"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Bounds of a stop beyond Options.DrainDelay and Options.StopTimeout. A part that exceeds its bound is abandoned.
const (
	httpStop  = time.Second     // time for an HTTP request to end
	lastSend  = time.Second     // time for the last charges of quotas, plus Options.MaxWait
	lastCut   = 3 * time.Second // time for cancelled requests to end
	lastWait  = 3 * time.Second // time for background work to end, plus Options.LongestTimeout
	lastClose = 2 * time.Second // time for each part to close, plus Options.LongestTimeout
)

// StopBound is the maximum time that Run and Close together take after the stop, even if a part hangs.
func (o *Options) StopBound() time.Duration {
	return o.DrainDelay + o.StopTimeout + 15*time.Second + 3*o.LongestTimeout()
}

// App is a process that is ready to run. Its methods are safe for concurrent use. The caller of New must call Close,
// whether or not it has called Run.
type App struct {
	o     Options
	parts []part // parts in the order in which they were opened

	metrics *metrics.Metrics
	clients *conns.Clients
	traces  *telemetry.Telemetry
	top     *topkeys.Top // nil with --top-keys 0
	rules   *rules.Rules
	store   *store.Store
	decider *decide.Decider
	quotas  *rlqs.Keeper       // nil without --quota
	grpc    *grpcserver.Server // nil inside another process
	admin   *admin.Server

	closed func() error // closes all parts at its first call
}

// part is a component that an App has opened.
type part struct {
	name string
	// run, if not nil, works until ctx is done. If it returns an error, the process stops.
	run func(ctx context.Context) error
	// close, if not nil, frees the part. The App calls it after run has ended or was abandoned.
	close func() error
}

// add adds a part that has any of the methods Run, Close and Metrics.
func (a *App) add(name string, p any) {
	added := part{name: name}
	switch p := p.(type) {
	case interface {
		Run(ctx context.Context) error
	}:
		added.run = p.Run
	case interface{ Run(ctx context.Context) }:
		added.run = func(ctx context.Context) error {
			p.Run(ctx)
			return nil
		}
	}
	if p, ok := p.(io.Closer); ok {
		added.close = p.Close
	}
	if p, ok := p.(interface{ Metrics() []metric.Group }); ok {
		a.metrics.Add(p.Metrics()...)
	}
	a.parts = append(a.parts, added)
}

// New checks the options, loads the rules, opens the store and listens, so that Run cannot fail for these reasons. An
// unreachable Redis is not an error. If New fails, it has freed everything.
func New(ctx context.Context, o Options) (*App, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	a := &App{o: o}
	a.closed = sync.OnceValue(a.close)
	for _, open := range []func(context.Context) error{
		a.openMetrics, a.openRules, a.openDecider, a.openQuotas, a.openServers, a.load, a.listen,
	} {
		if err := open(ctx); err != nil {
			return nil, errors.Join(err, a.Close())
		}
	}
	return a, nil
}

// openMetrics opens the parts that observe the others.
func (a *App) openMetrics(ctx context.Context) (err error) {
	o := &a.o
	o.Metrics.Build, o.OTel.Version, o.OTel.Log, o.Statsd.Log = o.Build, o.Build.Version, o.Log, o.Log
	a.metrics = metrics.New(o.Metrics)
	a.clients = conns.NewClients(o.Clients, o.Log)
	a.add("clients", a.clients)
	if o.LogQueue != nil {
		a.metrics.Add(o.LogQueue.Metrics()...)
	}
	if o.Statsd.Addr != "" {
		sender, err := metrics.NewStatsd(o.Statsd, a.metrics.Classic())
		if err != nil {
			return err
		}
		a.add("statsd", sender)
	}
	if o.Top.PerRule > 0 {
		a.top = topkeys.New(o.Top)
		a.add("top keys", a.top)
	}
	if a.traces, err = telemetry.Start(ctx, o.OTel); err != nil {
		return err
	}
	a.add("OpenTelemetry", a.traces)
	return nil
}

// openRules opens the store and creates the rules; load loads them.
func (a *App) openRules(ctx context.Context) (err error) {
	o, m := &a.o, a.metrics
	if o.Redis, err = o.Primary(ctx); err != nil {
		return err
	}
	if o.Redis != nil {
		a.add("Redis", o.Redis)
	}
	process, err := o.process()
	if err != nil {
		return err
	}
	a.rules, err = rules.New(ctx, rules.Options{
		Config: o.RulesOptions, Redis: o.Redis, Process: process,
		HoldGC: o.HoldGC, Log: o.Log,
	})
	if err != nil {
		return err
	}
	a.add("rules", a.rules)
	o.Requests, o.Effects, o.StoreOptions.Log = m.Requests, a.rules.Effects, o.Log
	if o.Redis != nil { // reading the clock takes longer than a decision in memory
		o.Stages = func(names []string) []take.Stage { return append(a.traces.Stages(), m.Timed(names...)) }
	}
	if a.store, err = store.Open(ctx, &o.StoreOptions); err != nil {
		return err
	}
	a.add("store", a.store)
	return nil
}

func (a *App) openDecider(ctx context.Context) (err error) {
	o, watchers := &a.o, a.traces.Watchers()
	if o.Log.Enabled(ctx, slog.LevelDebug) {
		watchers = append(watchers, newDecisionLog(o.Log))
	}
	if a.top != nil {
		watchers = append(watchers, a.top)
	}
	a.decider, err = decide.New(decide.Options{
		Config: o.DecideOptions, Rules: a.rules.Set, Store: a.store.Store, Local: a.store.Fallback(),
		Observer: observer{a.metrics, a.store}, Watchers: watchers, Lenient: o.LenientRules, Unasked: store.Unasked,
	})
	if err == nil {
		a.metrics.Add(metrics.Delayed(a.decider.Delayed))
	}
	return err
}

// observer counts for Prometheus, and reports failures of the store to the store.
type observer struct {
	*metrics.Metrics
	store *store.Store
}

func (o observer) StoreFailed(err error) {
	o.Metrics.StoreFailed(err)
	if !errors.Is(err, limiter.ErrLate) {
		o.store.Failed(err)
	}
}

// openQuotas opens the quotas if --quota is set.
func (a *App) openQuotas(context.Context) (err error) {
	if !a.o.Quota || a.o.Embedded {
		return nil
	}
	a.quotas, err = rlqs.New(rlqs.Options{
		Store: a.store, Resolve: rlqs.Resolver(a.rules.Set, a.decider), Logger: a.o.Log,
		Reported: a.metrics.ReportedByEnvoys,
		Decided: func(d rlqs.Decided) {
			a.metrics.DecidedByEnvoys(d.Limit, d.Outcome, d.Requests)
			if a.top != nil && d.IsFirst {
				a.top.Add(d.Limit, d.Key, d.Requests, d.Outcome.Unfit() || d.Outcome == decide.Uncharged)
			}
		},
	})
	if err == nil {
		a.add("quotas", a.quotas)
	}
	return err
}

// openServers creates the servers; listen makes them listen.
func (a *App) openServers(ctx context.Context) error {
	o, m := &a.o, a.metrics
	calls := grpcserver.NewCalls(m, o.Log)
	service, err := rls.New(rls.Options{Decider: a.decider, Rejected: m.Rejected})
	if err != nil {
		return err
	}
	if !o.Embedded {
		a.grpc, err = grpcserver.New(ctx, grpcserver.Options{
			Config: o.GRPCOptions, Service: service, Quotas: a.quotas, Calls: calls, Guard: a.clients.GRPC,
			ServerOptions: a.traces.ServerOptions(), Log: o.Log,
		})
		if err != nil {
			return err
		}
		a.add("gRPC server", a.grpc)
		a.add("certificates of --grpc-addr", a.grpc.TLS)
	}
	a.admin, err = admin.New(ctx, a.adminOptions(service, calls))
	if err != nil {
		return err
	}
	m.Add(a.admin.Metrics()...)
	tls := []*listen.TLS{a.admin.TLS}
	if a.grpc != nil {
		tls = append(tls, a.grpc.TLS)
	}
	m.Add(listen.Metrics(tls...)...)
	a.add("certificates of --http-addr", a.admin.TLS)
	if a.o.HTTPAddr != "" {
		a.add("history", a.admin.History)
	}
	for _, server := range a.admin.Addresses {
		a.add(server.Name+" server", server)
	}
	return nil
}

// adminOptions returns the options of the HTTP servers, which show the other parts.
func (a *App) adminOptions(service *rls.Service, calls *grpcserver.Calls) admin.Options {
	o := admin.Options{
		Config: a.o.HTTPOptions,
		Checks: []admin.Check{
			{Name: "rules", Err: a.rules.Ready, Note: a.rules.Note},
			{Name: "store", Err: a.storeReady, Remote: true},
		},
		Rules: a.rules,
		Counters: &admin.Counters{
			Rules: a.rules.Set, Store: a.store.Counters, Forget: a.reset,
		},
		Metrics: a.metrics.Handler(), ClassicText: a.metrics.WriteText, Decisions: a.metrics.Decisions,
		Reservation: a.metrics.Reservation,
		History:     admin.NewHistory(a.metrics.Sample),
		Store:       a.store.String(), Degraded: a.store.Outage, Counted: a.store.Counted,
		Explain:       explain.Live(a.decider, a.rules.Set),
		DecideGuarded: a.o.GRPCTLSClientCA != "",
		DecideJSON: func(ctx context.Context, body io.Reader) (answer []byte, isOver bool, err error) {
			return service.DecideJSON(ctx, body, calls.Unary)
		},
		Build: a.o.Build, StartedAt: time.Now(), Panicked: a.metrics.Panicked,
		Guard: a.clients.HTTP, Budget: a.clients.Budget, Embedded: a.o.Embedded, Log: a.o.Log,
	}
	if a.top != nil {
		o.Top = a.top.Keys
	}
	if a.quotas != nil {
		o.Quotas = a.quotas.Status
	}
	return o
}

// storeReady returns the reason why the store cannot decide the active rules, or nil.
func (a *App) storeReady(ctx context.Context) error {
	if err := a.store.Ping(ctx); err != nil {
		return err
	}
	return a.store.PingRedisCell(ctx, a.rules.RedisCellStores())
}

// reset removes a counter, and the charges that quotas have made to it in advance.
func (a *App) reset(ctx context.Context, key string) (existed bool, err error) {
	existed, err = a.store.Reset(ctx, key)
	if a.quotas != nil {
		a.quotas.Changed()
	}
	return existed, err
}

// load loads the rules for the first time. after lists all functions to call when the rules change. Other users of
// rules, such as leases and the store's packed policies, use the pointers that a request carries.
func (a *App) load(ctx context.Context) error {
	after := []func(){a.store.DropDenials}
	if a.grpc != nil {
		after = append(after, a.grpc.Health.Serving)
	}
	if a.quotas != nil {
		after = append(after, a.quotas.Changed)
	}
	if a.top != nil {
		after = append(after, func() { a.top.Keep(a.rules.Set()) })
	}
	return a.rules.Load(ctx, a.metrics.Prepare, after...)
}

// listen makes the servers listen.
func (a *App) listen(ctx context.Context) error {
	if a.grpc != nil {
		if err := a.grpc.Listen(ctx); err != nil {
			return err
		}
	}
	for _, server := range a.admin.Addresses {
		if err := server.Listen(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Close frees the listeners and connections that New has opened. Call it after Run, or without Run. It abandons a part
// that does not close in time, and returns an error for it. A second Close returns the result of the first.
func (a *App) Close() error { return a.closed() }

// close closes all parts, the last opened first.
func (a *App) close() error {
	var errs []error
	for _, p := range slices.Backward(a.parts) {
		if p.close != nil {
			errs = append(errs, closeInTime(p.name, lastClose+a.o.LongestTimeout(), p.close))
		}
	}
	return errors.Join(errs...)
}

// GRPCAddr returns the address of the gRPC server, "host:port" or "unix:PATH", or "" inside another process.
func (a *App) GRPCAddr() string {
	if a.grpc == nil {
		return ""
	}
	return a.grpc.Addr()
}

// HTTPAddr returns the address of the HTTP server, or "" if there is none.
func (a *App) HTTPAddr() string { return a.admin.Addr() }

// Reload reads the rule files now. An error, which it also logs, means that their content is not active.
func (a *App) Reload(ctx context.Context) error {
	before := a.rules.Status()
	err := a.rules.Reload(ctx)
	if after := a.rules.Status(); after.LoadedAt.Equal(before.LoadedAt) && after.ErrorsAt.Equal(before.ErrorsAt) {
		a.o.Log.LogAttrs(ctx, slog.LevelInfo, "rule files have not changed", slog.Bool("refused", err != nil))
	}
	return err
}
