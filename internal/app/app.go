// Package app is the process: it puts the parts together, serves, and stops in order. It is the only package
// that knows every other.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/boosts"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/decisionlog"
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/internal/rls"
	"github.com/weir-ratelimit/weir/internal/rules"
	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/internal/telemetry"
	"github.com/weir-ratelimit/weir/internal/topkeys"
	"github.com/weir-ratelimit/weir/pkg/fileread"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// Bounds of a stop, beside Options.DrainDelay and Options.StopTimeout: it ends whatever hangs.
const (
	httpStop  = time.Second     // for an HTTP request to end
	lastSend  = time.Second     // for the last traces and metrics to be sent
	lastWait  = 3 * time.Second // for requests that were cut off, and for the work in the background
	lastClose = 2 * time.Second // and Options.StoreTimeout: for each of the parts that Close closes
)

// StopBound is how long Run and Close together may take beyond Options.DrainDelay and Options.StopTimeout, whatever hangs.
const StopBound = 15 * time.Second

// App is a process that is ready to run. Its methods are safe for concurrent use. New, Run, Close: whoever made one calls
// Close, whether Run was called or not.
type App struct {
	o       Options
	metrics *metrics.Metrics
	sends   *telemetry.Telemetry
	rules   *rules.Rules
	boosts  *boosts.Board
	redis   *store.Redis // the connections of the first store; nil for memory
	store   *store.Store
	top     *topkeys.Top // nil if off
	health  *healthServer
	log     *decisionlog.Log // nil without
	grpc    *grpc.Server
	http    *http.Server
	statsd  *metrics.Statsd // nil without

	clients                    *clients
	grpcListener, httpListener net.Listener // httpListener is nil without HTTP

	stopping atomic.Bool
	closed   func() error // closes all, once

	handshakes [2]*handshakes // of gRPC and of HTTP
}

// New does everything that can fail: it checks the options, loads the rules, opens the store and listens. A
// Redis that cannot be reached is no failure. If it fails, it has freed what it held.
func New(ctx context.Context, o Options) (*App, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	a := &App{o: o, metrics: metrics.New(o.metrics()), health: newHealth(), clients: newClients(&o)}
	a.closed = sync.OnceValue(a.close)
	if err := a.open(ctx); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

func (a *App) open(ctx context.Context) error {
	if a.o.LogStats != nil {
		a.metrics.Log.From(a.o.LogStats)
	}
	for i, listener := range []string{"grpc", "http"} {
		a.handshakes[i] = &handshakes{listener: listener, log: a.o.Log}
	}
	a.metrics.Handshakes.From(func() map[string]uint64 {
		return map[string]uint64{"grpc": a.handshakes[0].failures.Load(), "http": a.handshakes[1].failures.Load()}
	})
	a.metrics.HungReads.From(fileread.Default.Hung)
	err := a.makeTop()
	if err != nil {
		return err
	}
	if a.o.Store != store.Memory {
		a.redis, err = store.Connect(store.RedisOptions{
			URL: a.o.Store, KeyPrefix: a.o.StoreKeyPrefix, Timeout: a.o.StoreTimeout, PoolSize: a.o.StorePoolSize,
		})
		if err != nil {
			return fmt.Errorf("--store: %w", err)
		}
	}
	a.boosts = a.openBoosts()
	if err = a.loadRules(ctx); err != nil {
		return err
	}
	a.boosts.Live(a.rules.Set())
	if a.sends, err = telemetry.Start(ctx, a.o.telemetry(a.metrics)); err != nil {
		return err
	}
	if a.store, err = openStore(&a.o, a.redis, a.metrics, a.sends); err != nil { //nolint:contextcheck // the store outlives ctx
		return err
	}
	a.boosts.First(ctx)
	watchers, err := a.watchers() //nolint:contextcheck // it reads one small file, which has a deadline of its own
	if err != nil {
		return err
	}
	decider, err := decide.New(decide.Options{
		Rules:          a.rules.Set,
		Store:          a.store,
		Local:          a.store.Fallback(),
		Boosts:         a.boosts.Limits,
		Observer:       observer{a.metrics, a.store},
		Watchers:       watchers,
		LimitHeaders:   a.o.limitHeaders(),
		MaxDescriptors: a.o.MaxDescriptors,
		MaxDelayed:     a.o.MaxHeld,
		MaxEntries:     a.o.MaxEntries,
		MaxCounters:    a.o.MaxCounters,
	})
	if err != nil {
		return err
	}
	service, err := rls.New(rls.Options{
		Decider: decider, Rejected: a.metrics.Rejected, DynamicMetadata: a.o.DynamicMetadata,
	})
	if err != nil {
		return err
	}
	a.metrics.Delayed.From(decider.Delayed)
	if a.o.StatsdAddr != "" {
		if a.statsd, err = metrics.NewStatsd(a.o.statsd()); err != nil {
			return err
		}
	}
	if err := a.makeGRPC(service); err != nil { //nolint:contextcheck // a handshake has a context of its own
		return err
	}
	if err := a.makeHTTP(decider); err != nil { //nolint:contextcheck // as above
		return err
	}
	a.watchClients()
	return a.listen(ctx)
}

func (a *App) makeTop() (err error) {
	if a.o.TopKeys > 0 {
		a.top, err = topkeys.New(topkeys.Options{PerRule: a.o.TopKeys, HashValues: a.o.TopKeysHash})
	}
	return err
}

func (a *App) makeGRPC(service *rls.Service) error {
	config, err := a.o.grpcTLS().config()
	var secure credentials.TransportCredentials
	if config != nil {
		secure = watchedTLS{credentials.NewTLS(config), a.handshakes[0]}
	}
	a.grpc = newGRPC(&a.o, service, a.health, a.metrics, secure, a.sends.ServerOptions()...)
	return err
}

func (a *App) makeHTTP(decider *decide.Decider) error {
	o := admin.Options{
		Checks: []admin.Check{
			{Name: "process", Err: a.stoppingErr},
			{Name: "rules", Err: a.rules.Ready, Note: a.rules.Note},
			{Name: "store", Err: a.storeReady, Remote: true},
		},
		Rules:       a.rules,
		Decisions:   a.metrics.Decisions,
		Store:       a.store.String(),
		StartedAt:   time.Now(),
		Explainer:   explainer{a.rules, decider},
		Counters:    a.counters(),
		Boosts:      a.boosts,
		Metrics:     a.metrics.Handler(),
		Build:       a.o.Build,
		Pprof:       a.o.Pprof,
		Log:         a.o.Log,
		ClientCerts: a.o.HTTPTLSClientCA != "",
		Open:        a.o.HTTPOpen,
		Hosts:       a.o.HTTPHosts,
	}
	if a.top != nil {
		o.Top = a.top.Keys
	}
	if a.o.HTTPTokenFile != "" {
		o.Token = a.o.httpToken
		if _, err := o.Token(); err != nil {
			return err
		}
	}
	if a.o.HTTPOpen && a.o.HTTPAddr != "" && o.Token == nil && !o.ClientCerts {
		a.o.Log.LogAttrs(context.Background(), slog.LevelWarn, "--http-open: everybody who reaches the HTTP address may change state, "+
			"such as boosts and counters, and see the values of keys", slog.String("http", a.o.HTTPAddr))
	}
	a.http = admin.NewServer(o)
	a.http.ErrorLog = slog.NewLogLogger(newQuietHTTP(a.o.Log.Handler(), a.handshakes[1]), slog.LevelWarn)
	a.http.ConnState = a.clients.http.ConnState
	var err error
	a.http.TLSConfig, err = a.o.httpTLS().config()
	return err
}

func (a *App) listen(ctx context.Context) error {
	mode, err := a.o.socketMode()
	if err != nil {
		return err
	}
	if a.grpcListener, err = listen(ctx, "--grpc-addr", a.o.GRPCAddr, mode); err != nil {
		return err
	}
	a.grpcListener = a.clients.grpc.Listen(a.grpcListener, a.o.GRPCTLSCert != "") //nolint:contextcheck // it outlives ctx
	if a.o.HTTPAddr == "" {
		return nil
	}
	if a.httpListener, err = listen(ctx, "--http-addr", a.o.HTTPAddr, mode); err != nil {
		return err
	}
	a.httpListener = a.clients.http.Listen(a.httpListener, false) //nolint:contextcheck // as above
	return nil
}

// Close frees what New got hold of: listeners, connections to Redis, the decision log. Call it after Run, or in its place. A
// part that does not close in time is left behind, and is an error. A second Close returns what the first did.
func (a *App) Close() error { return a.closed() }

// close closes every part that open made, in the order in which they depend on each other.
func (a *App) close() error {
	a.health.end()
	var errs []error
	end := func(made bool, name string, closePart func() error) {
		if made {
			errs = append(errs, closeInTime(name, lastClose+a.o.StoreTimeout, closePart))
		}
	}
	end(a.grpcListener != nil, "gRPC address", func() error { return closeListener(a.grpcListener) })
	end(a.httpListener != nil, "HTTP address", func() error { return closeListener(a.httpListener) })
	end(a.grpc != nil, "gRPC server", func() error { // again, perhaps; its workers are there before it serves
		a.grpc.Stop()
		return nil
	})
	end(a.store != nil, "store", a.store.Close)
	end(a.redis != nil, "Redis", func() error { return a.redis.Close() })
	end(a.log != nil, "decision log", func() error {
		a.log.Close()
		return nil
	})
	end(a.sends != nil, "OpenTelemetry", func() error {
		a.stopSending()
		return nil
	})
	return errors.Join(errs...)
}

// closeListener closes a listener. That its server did so before is no failure.
func closeListener(l net.Listener) error {
	if err := l.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// stopSending sends what waits. A collector that is away is no reason to fail.
func (a *App) stopSending() {
	ctx, cancel := context.WithTimeout(context.Background(), lastSend)
	defer cancel()
	if err := a.sends.Close(ctx); err != nil {
		a.o.Log.LogAttrs(ctx, slog.LevelWarn, "the last traces or metrics are not sent", slog.String("error", err.Error()))
	}
}

// GRPCAddr is where the service listens: "host:port" or "unix:PATH".
func (a *App) GRPCAddr() string { return address(a.grpcListener) }

// HTTPAddr is where health, rules and metrics are; empty if nowhere.
func (a *App) HTTPAddr() string { return address(a.httpListener) }

// Reload reads the rule files now. Its error is why what they hold is not live; it has been logged.
func (a *App) Reload(ctx context.Context) error {
	before := a.rules.Status()
	err := a.rules.Reload(ctx)
	if after := a.rules.Status(); after.LoadedAt.Equal(before.LoadedAt) && after.ErrorsAt.Equal(before.ErrorsAt) {
		a.o.Log.LogAttrs(ctx, slog.LevelInfo, "rule files have not changed", slog.Bool("refused", err != nil))
	}
	return err
}

// rulesLive is called whenever rules went live. After the health server's Shutdown it changes nothing.
func (a *App) rulesLive() {
	a.health.set(healthpb.HealthCheckResponse_SERVING)
	if a.store != nil { // else the process starts, and Run looks
		a.boosts.Live(a.rules.Set())
		a.store.DropDenials()
		a.checkEngine(context.Background())
		if a.top != nil {
			a.top.Keep(a.rules.Set())
		}
	}
}

// checkEngine warns of limits that this Redis cannot decide, before requests meet them.
func (a *App) checkEngine(ctx context.Context) {
	if err := a.store.PingRedisCell(ctx, a.rules.StoresOf(limiter.EngineRedisCell)); err != nil {
		a.o.Log.LogAttrs(ctx, slog.LevelWarn, "limits with engine: redis_cell cannot be decided, their on_store_failure answers",
			slog.String("error", err.Error()))
	}
}

// storeReady says why the store cannot decide the live rules.
func (a *App) storeReady(ctx context.Context) error {
	if err := a.store.Ping(ctx); err != nil {
		return err
	}
	return a.store.PingRedisCell(ctx, a.rules.StoresOf(limiter.EngineRedisCell))
}

func (a *App) stoppingErr(context.Context) error {
	if a.stopping.Load() {
		return errors.New("stopping")
	}
	return nil
}

// Run serves until ctx is done, then stops: it says that it is not ready, goes on for the drain delay, and ends
// after the requests in flight or the stop timeout. An error is a server that ended by itself, or what did not end when it
// was told to: Run returns all the same. It is called once at most, before Close.
func (a *App) Run(ctx context.Context) error {
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	var background tasks
	ended := make(chan error, 3) // one each
	run := func(what string, f func() error) {
		background.run(what, func() {
			if err := f(); err != nil {
				ended <- fmt.Errorf("%s: %w", what, err)
			}
		})
	}
	run("gRPC server", func() error { return a.grpc.Serve(a.grpcListener) })
	if a.httpListener != nil {
		run("HTTP server", a.serveHTTP)
	}
	run("rules", func() error { return a.rules.Run(work) })
	a.runRest(work, &background)
	a.logStart(work)
	a.checkEngine(work)

	var err error
	select {
	case <-ctx.Done():
		err = a.stop(work)
	case err = <-ended:
		err = errors.Join(err, a.cut())
	}
	err = errors.Join(err, a.stopHTTP(work))
	stopWork()
	return errors.Join(err, background.wait())
}

// runRest runs what never fails, until ctx is done.
func (a *App) runRest(ctx context.Context, background *tasks) {
	background.run("boosts", func() { a.boosts.Run(ctx) })
	background.run("store", func() { a.store.Run(ctx) })
	if a.top != nil {
		background.run("top keys", func() { a.top.Run(ctx) })
	}
	if a.statsd != nil {
		background.run("statsd", func() { a.statsd.Run(ctx, a.metrics) })
	}
}

func (a *App) serveHTTP() error {
	serve := a.http.Serve
	if a.http.TLSConfig != nil {
		serve = func(l net.Listener) error { return a.http.ServeTLS(l, "", "") }
	}
	if err := serve(a.httpListener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// stop ends the service after the requests in flight. An error says that some did not end even when they were cut off.
func (a *App) stop(ctx context.Context) (err error) {
	start := time.Now()
	a.stopping.Store(true)
	a.health.Shutdown()
	a.o.Log.LogAttrs(ctx, slog.LevelInfo, "stopping",
		slog.Duration("drain_delay", a.o.DrainDelay), slog.Duration("stop_timeout", a.o.StopTimeout))
	<-time.After(a.o.DrainDelay)
	a.health.end()

	answered := make(chan struct{})
	go func() {
		a.grpc.GracefulStop()
		close(answered)
	}()
	cut := false
	select {
	case <-answered:
	case <-time.After(a.o.StopTimeout):
		cut = true
		err = a.cut()
	}
	a.o.Log.LogAttrs(ctx, slog.LevelInfo, "stopped",
		slog.Bool("all_answered", !cut), slog.Duration("took", time.Since(start)))
	return err
}

// cut ends all requests. An error says that some went on.
func (a *App) cut() error {
	if !within(lastWait, a.grpc.Stop) {
		return fmt.Errorf("requests that were cut off have not ended after %s", lastWait)
	}
	return nil
}

// stopHTTP goes last, so that probes are answered until the end.
func (a *App) stopHTTP(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, httpStop)
	defer cancel()
	if err := a.http.Shutdown(ctx); errors.Is(err, context.DeadlineExceeded) {
		return a.http.Close()
	}
	return nil
}

// logStart is the line that says what runs.
func (a *App) logStart(ctx context.Context) {
	status := a.rules.Status()
	limits := 0
	if set := a.rules.Set(); set != nil {
		limits = len(set.Limits())
	}
	a.o.Log.LogAttrs(ctx, slog.LevelInfo, "serving",
		slog.String("version", a.o.Build.Version),
		slog.String("grpc", a.GRPCAddr()),
		slog.String("http", a.HTTPAddr()),
		slog.String("store", a.store.String()),
		slog.String("rules", reload.ShortHash(status.Hash)),
		slog.Int("files", len(status.Files)),
		slog.Int("limits", limits),
	)
}
