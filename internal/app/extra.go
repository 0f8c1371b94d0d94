package app

import (
	"context"
	"io/fs"
	"log/slog"
	"net"
	"net/http"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/conns"
)

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
		a.addExtra("debug", "--debug-addr", a.o.DebugAddr, admin.NewDebugServer(admin.DebugOptions{
			Rules: a.rules.Set, Stats: a.metrics.WriteText, Log: a.o.Log,
		}))
	}
	if a.o.MetricsAddr != "" {
		a.addExtra("metrics", "--metrics-addr", a.o.MetricsAddr,
			admin.NewMetricsServer(a.o.MetricsPath, a.metrics.Handler(), a.o.Log))
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
	a.add(name+" server", func(context.Context) error { return except(http.ErrServerClosed, server.Serve(e.listener)) }, nil)
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
