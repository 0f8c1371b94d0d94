package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/conns"
	"github.com/weir-ratelimit/weir/internal/explain"
	"github.com/weir-ratelimit/weir/pkg/fileread"
)

// openHTTP makes the HTTP server. It listens later.
func (a *App) openHTTP(ctx context.Context) error {
	o := admin.Options{
		Checks: []admin.Check{
			{Name: "process", Err: a.stoppingErr},
			{Name: "rules", Err: a.rules.Ready, Note: a.rules.Note},
			{Name: "store", Err: a.storeReady, Remote: true},
		},
		Rules:       a.rules,
		Decisions:   a.metrics.Decisions,
		History:     a.history,
		Store:       a.store.String(),
		StartedAt:   time.Now(),
		Explain:     a.explain,
		Counters:    a.counters(),
		Boosts:      a.boosts,
		Metrics:     a.metrics.Handler(),
		Build:       a.o.Build,
		Healthcheck: a.healthcheck,
		Pprof:       a.o.Pprof,
		Log:         a.o.Log,
		ClientCerts: a.o.HTTPTLSClientCA != "",
		Open:        a.o.HTTPOpen,
		Hosts:       a.o.HTTPHosts,
	}
	if a.o.HTTPJSON {
		o.DecideGuarded = a.o.GRPCTLSClientCA != ""
		o.DecideJSON = func(ctx context.Context, body []byte) (answer []byte, isOver bool, err error) {
			return a.service.DecideJSON(ctx, body, a.interceptor.unary)
		}
	}
	if a.top != nil {
		o.Top = a.top.Keys
	}
	if q := a.quotas.Load(); q != nil {
		o.Quotas = q
	}
	if a.o.HTTPTokenFile != "" {
		o.Token = a.o.httpToken
		if _, err := o.Token(); err != nil {
			return err
		}
	}
	if a.o.HTTPOpen && a.o.HTTPAddr != "" && o.Token == nil && !o.ClientCerts {
		a.o.Log.LogAttrs(ctx, slog.LevelWarn, "--http-open: everybody who reaches the HTTP address may change state, "+
			"such as boosts and counters, and see the values of keys", slog.String("http", a.o.HTTPAddr))
	}
	a.http = admin.NewServer(o)
	a.http.Handler = a.countPanics(a.http.Handler)
	a.http.ErrorLog = slog.NewLogLogger(newBoundedHTTP(a.o.Log.Handler(), a.httpHandshakes), slog.LevelWarn)
	a.http.ConnState = a.clients.http.ConnState
	config, err := a.o.httpTLS().config() //nolint:contextcheck // a handshake has its own
	if err != nil {
		return err
	}
	a.http.TLSConfig = config
	if a.o.HTTPAddr != "" {
		a.add("HTTP server", func(context.Context) error { return a.serveHTTP() }, nil)
	}
	return nil
}

func (a *App) serveHTTP() error {
	serve := a.http.Serve
	if a.http.TLSConfig != nil {
		serve = func(l net.Listener) error { return a.http.ServeTLS(l, "", "") }
	}
	return except(http.ErrServerClosed, serve(a.httpListener))
}

// explain answers by the live rules and counters.
func (a *App) explain(ctx context.Context, query url.Values) (any, error) {
	q, err := explain.ParseQuery(query)
	if err != nil {
		return nil, err
	}
	set := a.rules.Set()
	if set == nil {
		return nil, errors.New("no rules are loaded yet; GET /rules says what is wrong with the files")
	}
	return explain.Ask(ctx, a.decider, set, q)
}

func (a *App) stoppingErr(context.Context) error {
	if a.stopping.Load() {
		return errors.New("stopping")
	}
	return nil
}

// httpToken reads the token again for each request, so that it can be changed.
func (o *Options) httpToken() (string, error) {
	text, err := fileread.ReadFile(context.Background(), o.HTTPTokenFile)
	if err != nil {
		return "", fmt.Errorf("--http-token-file: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", errors.New("--http-token-file: " + o.HTTPTokenFile + " is empty")
	}
	return token, nil
}

// maxExtra is the most connections to each further HTTP address.
const maxExtra = 64

// extraServer is an HTTP server beside the one of --http-addr: for debug pages or for metrics.
type extraServer struct {
	name, flag, addr string
	server           *http.Server
	guard            *conns.Guard
	listener         net.Listener
}

// openExtra makes the HTTP servers of --debug-addr and --metrics-addr. They listen later.
func (a *App) openExtra(context.Context) error {
	if a.o.DebugAddr != "" {
		a.addExtra("debug", "--debug-addr", a.o.DebugAddr, admin.NewDebugServer(a.rules.Set, a.metrics.WriteText))
	}
	if a.o.MetricsAddr != "" {
		a.addExtra("metrics", "--metrics-addr", a.o.MetricsAddr,
			admin.NewMetricsServer(a.o.MetricsPath, a.metrics.Handler()))
	}
	return nil
}

func (a *App) addExtra(name, flag, addr string, server *http.Server) {
	e := &extraServer{
		name: name, flag: flag, addr: addr, server: server,
		guard: conns.New(conns.Options{Name: name, Max: maxExtra, Log: a.o.Log}),
	}
	server.ErrorLog = slog.NewLogLogger(newBoundedHTTP(a.o.Log.Handler(), a.httpHandshakes), slog.LevelWarn)
	server.ConnState = e.guard.ConnState
	a.extra = append(a.extra, e)
	a.add(name+" server", func(context.Context) error {
		return except(http.ErrServerClosed, server.Serve(e.listener))
	}, nil)
}

func (a *App) listenExtra(ctx context.Context, mode fs.FileMode) error {
	for _, e := range a.extra {
		l, err := listen(ctx, e.flag, e.addr, mode)
		if err != nil {
			return err
		}
		e.listener = e.guard.Listen(l, false) //nolint:contextcheck // it outlives ctx
		a.add(e.name+" address", nil, func() error { return except(net.ErrClosed, e.listener.Close()) })
	}
	return nil
}
