package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/conns"
	"github.com/weir-ratelimit/weir/internal/fileread"
	"github.com/weir-ratelimit/weir/internal/offline/explain"
)

// openHTTP makes the HTTP servers. They listen later.
func (a *App) openHTTP(context.Context) error {
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
		Metrics:     a.metrics.Handler(),
		Build:       a.o.Build,
		Healthcheck: a.healthcheck,
		Pprof:       a.o.Pprof,
		Log:         a.o.Log,
		ClientCerts: a.o.HTTPTLSClientCA != "",
	}
	if a.o.HTTPJSON {
		o.DecideGuarded = a.o.GRPCTLSClientCA != ""
		o.DecideJSON = func(ctx context.Context, body []byte, decoded func()) (answer []byte, isOver bool, err error) {
			return a.service.DecideJSON(ctx, body, decoded, a.interceptor.unary)
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
	server := admin.NewServer(o)
	server.Handler = a.countPanics(server.Handler)
	var err error
	if server.TLSConfig, err = a.o.httpTLS().config(); err != nil { //nolint:contextcheck // a handshake has its own
		return err
	}
	a.http = a.addHTTP("HTTP", "--http-addr", a.o.HTTPAddr, server, a.clients.http)
	a.openAdminSocket(server.Handler)
	extra := func(name, addr string, server *http.Server) {
		a.addHTTP(name, "--"+name+"-addr", addr, server, a.newGuard(name))
	}
	if a.o.DebugAddr != "" {
		extra("debug", a.o.DebugAddr, admin.NewDebugServer(a.rules.Set, a.metrics.WriteText))
	}
	if a.o.MetricsAddr != "" {
		extra("metrics", a.o.MetricsAddr, admin.NewMetricsServer(a.o.MetricsPath, a.metrics.Handler()))
	}
	return nil
}

// maxExtra is the most connections to each HTTP address besides --http-addr.
const maxExtra = 64

func (a *App) newGuard(name string) *conns.Guard {
	return conns.New(conns.Options{Name: name, Max: maxExtra, Log: a.o.Log})
}

// httpServer is an HTTP server at one address.
type httpServer struct {
	name, flag, addr string // flag has the address
	server           *http.Server
	guard            *conns.Guard
	listener         net.Listener // nil before listen, and without an address
}

// addHTTP adds a server, which serves if it has an address.
func (a *App) addHTTP(name, flag, addr string, server *http.Server, guard *conns.Guard) *httpServer {
	h := &httpServer{name: name, flag: flag, addr: addr, server: server, guard: guard}
	if addr == "" {
		return h
	}
	server.ErrorLog = slog.NewLogLogger(newBoundedHTTP(a.o.Log.Handler(), a.httpHandshakes), slog.LevelWarn)
	server.ConnState = guard.ConnState
	a.httpServers = append(a.httpServers, h)
	a.add(name+" server", func(context.Context) error {
		serve := server.Serve
		if server.TLSConfig != nil {
			serve = func(l net.Listener) error { return server.ServeTLS(l, "", "") }
		}
		return except(http.ErrServerClosed, serve(h.listener))
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
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", errors.New("--http-token-file: " + o.HTTPTokenFile + " is empty")
	}
	return token, nil
}
