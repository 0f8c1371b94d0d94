package admin

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/conns"
	"github.com/weir-ratelimit/weir/internal/flags"
	"github.com/weir-ratelimit/weir/internal/listen"
	"github.com/weir-ratelimit/weir/internal/metrics/metric"
	"github.com/weir-ratelimit/weir/internal/sleep"
)

const (
	// maxExtra is the maximum number of connections to each HTTP address other than --http-addr.
	maxExtra = 64
	// socketFlag has the path of the admin socket, which serves the HTTP endpoints to clients on this machine that may
	// change state. socketMode has the permissions of a socket that is a file: for the user of the process and root.
	socketFlag             = "--admin-socket"
	socketMode fs.FileMode = 0o600
	// socketRetry is the interval between attempts to open the admin socket, which a previous process may still hold.
	socketRetry = time.Second
	// quietTries is the number of attempts after which an embedded Weir warns, because while Envoy replaces a filter or
	// itself, the previous filter or process has the socket.
	quietTries = 30
)

// Server has the HTTP servers of a process.
type Server struct {
	Addresses []*Address // servers for the addresses in the flags
	History   *History
	TLS       *listen.TLS

	h    *handler
	http *Address // nil without --http-addr
}

// New creates the servers for the addresses in the flags. They do not listen yet.
func New(ctx context.Context, o Options) (*Server, error) {
	s := &Server{History: o.History, TLS: o.tls(o.Log), h: newHandler(o)}
	s.h.Checks = slices.Concat([]Check{{Name: "process", Err: s.h.stoppingErr}}, s.h.Checks)
	if s.h.Token != nil {
		if _, err := s.h.Token(); err != nil {
			return nil, err
		}
	}
	server := newServer(s.countPanics(s.h.serve()))
	var err error
	if server.TLSConfig, err = s.TLS.Load(ctx); err != nil {
		return nil, err
	}
	if o.HTTPAddr != "" {
		s.http = s.add("HTTP", "--http-addr", o.HTTPAddr, server, o.Guard)
	}
	if adminapi.Socket(o.AdminSocket, o.HTTPAddr) != "" {
		s.add("admin socket", socketFlag, o.AdminSocket, NewSocketServer(server.Handler), nil)
	}
	if o.DebugAddr != "" {
		s.add("debug", "--debug-addr", o.DebugAddr, NewDebugServer(o.Rules.Set, o.ClassicText), nil)
	}
	if o.MetricsAddr != "" {
		s.add("metrics", "--metrics-addr", o.MetricsAddr, NewMetricsServer(o.MetricsPath, o.Metrics), nil)
	}
	return s, nil
}

// countPanics counts panics of requests. net/http logs them and closes their connections.
func (s *Server) countPanics(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		returned := false
		defer func() {
			if !returned {
				s.h.Panicked()
			}
		}()
		next.ServeHTTP(w, r)
		returned = true
	})
}

// Address is an HTTP server at one address.
type Address struct {
	Name string

	flag, addr string // flag is the name of the flag with the address
	of         *Server
	server     *http.Server
	guard      *conns.Guard
	listener   net.Listener // nil before Listen, and until the admin socket could be opened
}

// add adds a server. If guard is nil, the server gets its own guard.
func (s *Server) add(name, flag, addr string, server *http.Server, guard *conns.Guard) *Address {
	if guard == nil {
		guard = conns.New(conns.Options{Name: name, Max: maxExtra, Budget: s.h.Budget, Log: s.h.Log})
	}
	a := &Address{Name: name, flag: flag, addr: addr, of: s, server: server, guard: guard}
	s.TLS.Watch(server)
	guard.Serve(server)
	s.Addresses = append(s.Addresses, a)
	return a
}

// Addr returns the address of --http-addr, or "".
func (s *Server) Addr() string {
	if s.http == nil {
		return ""
	}
	return listen.Address(s.http.listener)
}

// Metrics returns the metrics of HTTP requests.
func (s *Server) Metrics() []metric.Group {
	return []metric.Group{metric.Of(s.h.wrongTokens.Load,
		metric.Counter("weir_http_wrong_tokens_total",
			"HTTP requests with a wrong token. The log names clients, one line per second.",
			metric.Itself[uint64]),
	)}
}

// Stopping makes the process not ready.
func (s *Server) Stopping() { s.h.stopping.Store(true) }

// Stop stops the servers after their current requests, and cancels these requests when ctx is done.
func (s *Server) Stop(ctx context.Context) error {
	var errs []error
	for _, a := range s.Addresses {
		if err := a.server.Shutdown(ctx); errors.Is(err, context.DeadlineExceeded) {
			errs = append(errs, a.server.Close())
		}
	}
	return errors.Join(errs...)
}

// Listen opens the address. A failure to open the admin socket is not an error: Run tries again.
func (a *Address) Listen(ctx context.Context) (err error) {
	if a.flag == socketFlag {
		a.listenOnSocket(ctx, 0)
		return nil
	}
	l, err := listen.Listen(ctx, a.flag, a.addr, listen.SocketMode, a.of.h.Embedded)
	if err == nil {
		a.listener = a.guard.Listen(l, false) //nolint:contextcheck // it outlives ctx
	}
	return err
}

// Run serves until Server.Stop.
func (a *Address) Run(ctx context.Context) error {
	for try := 1; a.listener == nil; try++ {
		if sleep.For(ctx, socketRetry) != nil {
			return nil //nolint:nilerr // the server stops
		}
		a.listenOnSocket(ctx, try)
	}
	if a.server.TLSConfig != nil {
		return listen.Except(http.ErrServerClosed, a.server.ServeTLS(a.listener, "", ""))
	}
	return listen.Except(http.ErrServerClosed, a.server.Serve(a.listener))
}

// Close frees the address.
func (a *Address) Close() error {
	if a.listener == nil {
		return nil
	}
	return listen.Except(net.ErrClosed, a.listener.Close())
}

// listenOnSocket tries to open the admin socket, which needs the port of the HTTP address. It logs a failure once.
func (a *Address) listenOnSocket(ctx context.Context, try int) {
	o := &a.of.h.Options
	socket := adminapi.Socket(a.addr, cmp.Or(a.of.Addr(), o.HTTPAddr))
	l, err := listen.Listen(ctx, socketFlag, flags.Unix+socket, socketMode, o.Embedded)
	if err == nil {
		if adminapi.IsAbstract(socket) {
			l = adminapi.SameUser(l)
		}
		a.listener = a.guard.Listen(l, false) //nolint:contextcheck // it outlives ctx
		return
	}
	warnAt := 0
	if o.Embedded {
		warnAt = quietTries
	}
	if try == warnAt {
		o.Log.LogAttrs(ctx, slog.LevelWarn, "the admin socket cannot be opened yet; until then, commands such as weir reset "+
			"need a token (--http-token-file); name another socket with --admin-socket, or an empty one for no socket",
			slog.String("error", err.Error()))
	}
}
