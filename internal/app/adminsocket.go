package app

import (
	"cmp"
	"context"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/adminapi"
)

// socketRetry is the pause after which an admin socket is tried again that could not be opened, such as one of the
// process before this one, which still ends.
const socketRetry = time.Second

// adminMode is the permissions of an admin socket that is a file: for the user of the process, and root.
const adminMode fs.FileMode = 0o600

// adminSocket serves the HTTP endpoints to those on this machine who may change state.
type adminSocket struct {
	server   *http.Server
	listener net.Listener // nil if listen has not succeeded
}

// openAdminSocket makes the server of the admin socket.
func (a *App) openAdminSocket(handler http.Handler) {
	if adminapi.Socket(a.o.AdminSocket, a.o.HTTPAddr) == "" {
		return
	}
	s := &adminSocket{server: admin.NewSocketServer(handler)}
	guard := a.newGuard("admin socket")
	s.server.ErrorLog = slog.NewLogLogger(newBoundedHTTP(a.o.Log.Handler(), a.httpHandshakes), slog.LevelWarn)
	s.server.ConnState = guard.ConnState
	a.socket = s
	a.add("admin socket", func(ctx context.Context) error {
		l := s.listener
		for try := 1; l == nil; try++ {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(socketRetry):
				l = a.listenOnSocket(ctx, try)
			}
		}
		return except(http.ErrServerClosed, s.server.Serve(guard.Listen(l, false))) //nolint:contextcheck // it outlives ctx
	}, func() error {
		if s.listener == nil {
			return nil
		}
		return except(net.ErrClosed, s.listener.Close())
	})
}

// quietTries is how often an embedded Weir tries to open its socket before it warns: while Envoy replaces a filter or
// itself, the process or filter before has the socket.
const quietTries = 30

// listenOnSocket opens the admin socket, which needs the port of the HTTP address. Without a socket Weir works, so that
// a failure is logged once; it returns nil then.
func (a *App) listenOnSocket(ctx context.Context, try int) net.Listener {
	socket := adminapi.Socket(a.o.AdminSocket, cmp.Or(a.HTTPAddr(), a.o.HTTPAddr))
	l, err := listen(ctx, "--admin-socket", unixPrefix+socket, adminMode, a.o.Embedded)
	if err == nil {
		if adminapi.IsAbstract(socket) {
			l = adminapi.SameUser(l)
		}
		return l
	}
	warnAt := 0
	if a.o.Embedded {
		warnAt = quietTries
	}
	if try == warnAt {
		a.o.Log.LogAttrs(ctx, slog.LevelWarn, "there is no admin socket yet: commands such as weir reset need a token "+
			"(--http-token-file) until it can be opened; give another one by --admin-socket, or an empty one for none",
			slog.String("error", err.Error()))
	}
	return nil
}
