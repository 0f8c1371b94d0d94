package app

import (
	"cmp"
	"context"
	"io/fs"
	"log/slog"
	"net"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
)

// socketRetry is the pause after which an admin socket is tried again that could not be opened, such as one of the
// process before this one, which still ends.
const socketRetry = time.Second

// adminMode is the permissions of an admin socket that is a file: for the user of the process, and root.
const adminMode fs.FileMode = 0o600

// adminSocketFlag has the path of the admin socket, which serves the HTTP endpoints to those on this machine who may
// change state.
const adminSocketFlag = "--admin-socket"

// quietTries is how often an embedded Weir tries to open its socket before it warns: while Envoy replaces a filter or
// itself, the process or filter before has the socket.
const quietTries = 30

// listenOnSocket opens the admin socket, which needs the port of the HTTP address. Without a socket Weir works, so that
// a failure is logged once; it returns nil then.
func (a *App) listenOnSocket(ctx context.Context, try int) net.Listener {
	socket := adminapi.Socket(a.o.AdminSocket, cmp.Or(a.HTTPAddr(), a.o.HTTPAddr))
	l, err := listen(ctx, adminSocketFlag, unixPrefix+socket, adminMode, a.o.Embedded)
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
