package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/conns"
	"github.com/weir-ratelimit/weir/internal/fileread"
	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/internal/offline/explain"
)

// openHTTP makes the HTTP servers. They listen later.
func (a *App) openHTTP(ctx context.Context) (err error) {
	o := admin.Options{
		Checks: []admin.Check{
			{Name: "process", Err: a.stoppingErr},
			{Name: "rules", Err: a.rules.Ready, Note: a.rules.Note},
			{Name: "store", Err: a.storeReady, Remote: true},
		},
		Rules:     a.rules,
		Decisions: a.metrics.Decisions,
		History:   a.history,
		Store:     a.store.String(),
		Degraded:  a.store.Outage,
		StartedAt: time.Now(),
		Explain:   a.explain,
		Counters: &admin.Counters{
			Rules: a.rules.Set, Store: a.store.Counters, Forget: a.reset, KeyOf: a.store.KeyOf,
		},
		Metrics:     a.metrics.Handler(),
		Build:       a.o.Build,
		Healthcheck: a.healthcheck,
		Pprof:       a.o.Pprof,
		Log:         a.o.Log,
		ClientCerts: a.o.HTTPTLSClientCA != "",
		WrongTokens: &a.metrics.WrongTokens,
	}
	if a.o.HTTPJSON {
		o.DecideGuarded = a.o.GRPCTLSClientCA != ""
		o.DecideJSON = func(ctx context.Context, body io.Reader) (answer []byte, isOver bool, err error) {
			return a.service.DecideJSON(ctx, body, a.unary)
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
		if _, err = o.Token(); err != nil {
			return err
		}
	}
	server := admin.NewServer(o)
	server.Handler = a.countPanics(server.Handler)
	if server.TLSConfig, err = a.openTLS(ctx, a.o.httpTLS()); err != nil {
		return err
	}
	a.http = a.addHTTP("HTTP", "--http-addr", a.o.HTTPAddr, server, a.clients.http)
	if adminapi.Socket(a.o.AdminSocket, a.o.HTTPAddr) != "" {
		a.addHTTP("admin socket", adminSocketFlag, a.o.AdminSocket, admin.NewSocketServer(server.Handler), nil)
	}
	if a.o.DebugAddr != "" {
		debug := admin.NewDebugServer(a.rules.Set, a.metrics.WriteText)
		a.addHTTP("debug", "--debug-addr", a.o.DebugAddr, debug, nil)
	}
	if a.o.MetricsAddr != "" {
		shown := admin.NewMetricsServer(a.o.MetricsPath, a.metrics.Handler())
		a.addHTTP("metrics", "--metrics-addr", a.o.MetricsAddr, shown, nil)
	}
	return nil
}

// maxExtra is the most connections to each HTTP address besides --http-addr.
const maxExtra = 64

// httpServer is an HTTP server at one address.
type httpServer struct {
	name, flag, addr string // flag has the address
	server           *http.Server
	guard            *conns.Guard
	listener         net.Listener // nil before listen, without an address, and while the admin socket cannot be opened
}

// addHTTP adds a server, which serves if it has an address. Without a guard it gets its own.
func (a *App) addHTTP(name, flag, addr string, server *http.Server, guard *conns.Guard) *httpServer {
	if guard == nil {
		guard = conns.New(conns.Options{Name: name, Max: maxExtra, Budget: a.clients.memory, Log: a.o.Log})
	}
	h := &httpServer{name: name, flag: flag, addr: addr, server: server, guard: guard}
	if addr == "" {
		return h
	}
	log := boundedHTTP{a.o.Log.Handler(), a.httpHandshakes, &logging.Every{Interval: clientLines}}
	server.ErrorLog = slog.NewLogLogger(log, slog.LevelWarn)
	guard.Serve(server)
	a.httpServers = append(a.httpServers, h)
	a.add(name+" server", func(ctx context.Context) error {
		l := h.listener
		for try := 1; l == nil; try++ {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(socketRetry):
			}
			if l = a.listenOnSocket(ctx, try); l != nil {
				l = guard.Listen(l, false) //nolint:contextcheck // it outlives ctx
			}
		}
		if server.TLSConfig != nil {
			return except(http.ErrServerClosed, server.ServeTLS(l, "", ""))
		}
		return except(http.ErrServerClosed, server.Serve(l))
	}, nil)
	return h
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
	token, err := adminapi.ParseToken(text)
	if err != nil {
		return "", fmt.Errorf("--http-token-file: %s %w", o.HTTPTokenFile, err)
	}
	return token, nil
}
