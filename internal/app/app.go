// Package app is the process: it opens the parts, serves, and stops in order. It is the only package that knows every
// other.
package app

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/admin/topkeys"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/fileread"
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/internal/metrics/telemetry"
	"github.com/weir-ratelimit/weir/internal/rlqs"
	"github.com/weir-ratelimit/weir/internal/rls"
	"github.com/weir-ratelimit/weir/internal/rules"
	"github.com/weir-ratelimit/weir/internal/rules/xds"
	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Bounds of a stop, besides Options.DrainDelay and Options.StopTimeout: it ends whatever hangs.
const (
	httpStop  = time.Second     // for an HTTP request to end
	lastSend  = time.Second     // for the last traces to be sent
	lastWait  = 3 * time.Second // for requests that were cut off, and for the work in the background
	lastClose = 2 * time.Second // and Options.StoreTimeout: for each part that Close closes
)

// StopBound is how long Run and Close together may take beyond Options.DrainDelay and Options.StopTimeout, whatever
// hangs.
const StopBound = 15 * time.Second

// App is a process that is ready to run. Its methods are safe for concurrent use. The caller of New calls Close,
// whether it has called Run or not.
type App struct {
	o     Options
	parts []part // in the order in which they were opened

	metrics   *metrics.Metrics
	rules     *rules.Rules
	xds       *xds.Source // nil without --rules xds
	telemetry *telemetry.Telemetry
	redis     *store.Redis // the connections of --store; nil for memory
	store     *store.Store
	top       *topkeys.Top   // nil if off
	history   *admin.History // counts over the last hour
	decider   *decide.Decider
	quotas    atomic.Pointer[rlqs.Keeper] // nil without --quota

	health         *healthServer
	service        *rls.Service
	grpc           *grpc.Server
	clients        *clients
	reflecting     chan struct{} // has an element while an answer of gRPC's reflection is made
	grpcHandshakes *handshakes
	httpHandshakes *handshakes
	grpcListener   net.Listener

	http        *httpServer   // of --http-addr
	httpServers []*httpServer // all that have an address

	stopping atomic.Bool
	closed   func() error // closes all parts, once
}

// part is what an App has opened.
type part struct {
	name string
	// run, if not nil, works until ctx is done. An error ends the process.
	run func(ctx context.Context) error
	// close, if not nil, frees the part. It is called after run has ended, or was left behind.
	close func() error
}

func (a *App) add(name string, run func(ctx context.Context) error, closePart func() error) {
	a.parts = append(a.parts, part{name, run, closePart})
}

// always runs f, which does not fail.
func always(f func(ctx context.Context)) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		f(ctx)
		return nil
	}
}

// New does everything that can fail: it checks the options, loads the rules, opens the store and listens. A Redis that
// cannot be reached is no failure. If New fails, it has freed everything.
func New(ctx context.Context, o Options) (*App, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	o.Bounds.fill(debug.SetMemoryLimit(-1))
	o.Metrics.Version, o.Metrics.Commit, o.Metrics.Go = o.Build.Version, o.Build.Commit, o.Build.Go
	a := &App{
		o: o, health: newHealth(), clients: newClients(&o), reflecting: make(chan struct{}, 1),
		metrics:        metrics.New(o.Metrics),
		grpcHandshakes: newHandshakes("grpc", o.Log), httpHandshakes: newHandshakes("http", o.Log),
	}
	a.closed = sync.OnceValue(a.close)
	a.showProcess()
	for _, open := range []func(context.Context) error{
		a.openTop, a.openRedis, a.openRules, a.openTelemetry, a.openStore, a.openDecider,
		a.openQuotas, a.openStatsd, a.openHistory, a.openGRPC, a.openHTTP, a.listen,
	} {
		if err := open(ctx); err != nil {
			return nil, errors.Join(err, a.Close())
		}
	}
	return a, nil
}

// showProcess shows in the metrics what is not of a part.
func (a *App) showProcess() {
	if a.o.LogStats != nil {
		a.metrics.Log.From(a.o.LogStats)
	}
	a.metrics.Handshakes.From(func() map[string]uint64 {
		return map[string]uint64{"grpc": a.grpcHandshakes.failures.Load(), "http": a.httpHandshakes.failures.Load()}
	})
	a.metrics.ClientMemory.From(a.clients.memory.Used)
	a.metrics.HungReads.From(fileread.Default.Hung)
	a.metrics.Clients.From(func() []metrics.ClientStats {
		return []metrics.ClientStats{
			{Listener: "grpc", Stats: a.clients.grpc.Stats()}, {Listener: "http", Stats: a.clients.http.Stats()},
		}
	})
}

func (a *App) openTop(context.Context) (err error) {
	if a.o.Top.PerRule == 0 {
		return nil
	}
	if a.top, err = topkeys.New(a.o.Top); err != nil {
		return err
	}
	a.add("top keys", always(a.top.Run), nil)
	return nil
}

func (a *App) openStatsd(context.Context) error {
	if a.o.Statsd.Addr == "" {
		return nil
	}
	a.o.Statsd.Log = a.o.Log
	sender, err := metrics.NewStatsd(a.o.Statsd)
	if err != nil {
		return err
	}
	a.add("statsd", always(func(ctx context.Context) { sender.Run(ctx, a.metrics.Classic()) }), nil)
	return nil
}

// openHistory keeps the metrics' counts over time, for the page of the HTTP address.
func (a *App) openHistory(context.Context) error {
	a.history = admin.NewHistory(a.metrics.Sample)
	if a.o.HTTPAddr != "" {
		a.add("history", always(a.history.Run), nil)
	}
	return nil
}

// Close frees what New has opened: listeners, connections to Redis. Call it after Run, or without
// Run. A part that does not close in time is left behind, and is an error. A second Close returns the result of the
// first.
func (a *App) Close() error { return a.closed() }

// close closes every part, the last opened first.
func (a *App) close() error {
	a.health.end()
	var errs []error
	for _, p := range slices.Backward(a.parts) {
		if p.close != nil {
			errs = append(errs, closeInTime(p.name, lastClose+a.o.StoreTimeout, p.close))
		}
	}
	return errors.Join(errs...)
}

// GRPCAddr is where the service listens: "host:port" or "unix:PATH".
func (a *App) GRPCAddr() string { return address(a.grpcListener) }

// HTTPAddr is where health, rules and metrics are; empty if nowhere.
func (a *App) HTTPAddr() string { return address(a.http.listener) }

// openTelemetry starts to send traces by OTLP. At the end it sends the last of them; a collector that is unreachable is
// no failure.
func (a *App) openTelemetry(ctx context.Context) (err error) {
	a.o.OTel.Version, a.o.OTel.Log = a.o.Build.Version, a.o.Log
	a.telemetry, err = telemetry.Start(ctx, a.o.OTel)
	if err != nil {
		return err
	}
	a.add("OpenTelemetry", nil, func() error { //nolint:contextcheck // ctx has ended by then
		ctx, cancel := context.WithTimeout(context.Background(), lastSend)
		defer cancel()
		if err := a.telemetry.Close(ctx); err != nil {
			a.o.Log.LogAttrs(ctx, slog.LevelWarn, "the last traces are not sent", slog.String("error", err.Error()))
		}
		return nil
	})
	return nil
}

func (a *App) openDecider(ctx context.Context) (err error) {
	watchers := a.telemetry.Watchers()
	if a.o.Log.Enabled(ctx, slog.LevelDebug) {
		watchers = append(watchers, newDecisionLog(a.o.Log))
	}
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
	if !errors.Is(err, limiter.ErrLate) {
		o.store.Failed(err)
	}
}
