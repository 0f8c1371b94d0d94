package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-ratelimit/weir/internal/adminapi"
)

// unixPrefix starts an address that is the path of a Unix socket.
const unixPrefix = "unix:"

// listen opens the addresses of the servers.
func (a *App) listen(ctx context.Context) error {
	var err error
	if !a.o.Embedded {
		if a.grpcListener, err = listen(ctx, "--grpc-addr", a.o.GRPCAddr, socketMode, false); err != nil {
			return err
		}
		a.grpcListener = a.clients.grpc.Listen(a.grpcListener, a.o.GRPCTLSCert != "") //nolint:contextcheck // it outlives ctx
		a.add("gRPC address", nil, func() error { return except(net.ErrClosed, a.grpcListener.Close()) })
	}
	for _, h := range a.httpServers {
		if h.flag == adminSocketFlag {
			if h.listener = a.listenOnSocket(ctx, 0); h.listener == nil {
				continue
			}
		} else if h.listener, err = listen(ctx, h.flag, h.addr, socketMode, a.o.Embedded); err != nil {
			return err
		}
		h.listener = h.guard.Listen(h.listener, false) //nolint:contextcheck // as above
		a.add(h.name+" address", nil, func() error { return except(net.ErrClosed, h.listener.Close()) })
	}
	return nil
}

// except is the error, unless it is the expected one of a server or listener that was closed before.
func except(expected, err error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}

// socketMode is the permissions of Unix sockets: for the user of the process, and its group, which Envoy is in.
const socketMode fs.FileMode = 0o660

// listen opens the address that the flag names: TCP, or a Unix socket with the given permissions. If it is shared,
// other listeners may have the same address: connections go to any listener of a TCP address, and to the newest
// listener of a Unix socket.
func listen(ctx context.Context, flag, addr string, mode fs.FileMode, shared bool) (net.Listener, error) {
	network := "tcp"
	path, isUnix := strings.CutPrefix(addr, unixPrefix)
	isFile := isUnix && !adminapi.IsAbstract(path)
	if isUnix {
		network, addr = "unix", path
	}
	if isFile {
		if err := removeStale(ctx, path, shared); err != nil {
			return nil, fmt.Errorf("%s: listening on %s%s: %w", flag, unixPrefix, path, err)
		}
	}
	var lc net.ListenConfig
	switch {
	case isFile:
		lc.Control = withMode(mode)
	case shared && !isUnix:
		lc.Control = reusePort
	}
	l, err := lc.Listen(ctx, network, addr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(!shared) // the path may be a newer one's
	}
	if isFile {
		if err := os.Chmod(path, mode); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: permissions of the socket: %w", flag, err), l.Close())
		}
	}
	return l, nil
}

// withMode gives a Unix socket its permissions before it has a name, so that at no time too many can connect: Linux
// creates the file with those of the socket, less the umask. Elsewhere this has no effect, and the file gets its
// permissions a moment later.
func withMode(mode fs.FileMode) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = syscall.Fchmod(int(fd), uint32(mode.Perm())) })
	}
}

// reusePort lets several listeners have one TCP address: those of an Envoy that updates a listener, or of two Envoys
// during a hot restart.
func reusePort(_, _ string, c syscall.RawConn) error {
	var err error
	failed := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	})
	return errors.Join(failed, err)
}

// removeStale removes the socket that an ended process has left at path. It removes no socket on which a process
// listens, unless it is shared, and no other file.
func removeStale(ctx context.Context, path string, shared bool) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("the file is there and is no socket; remove it or choose another path")
	}
	if shared {
		return os.Remove(path)
	}
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "unix", path)
	if err == nil {
		return errors.Join(errors.New("another process listens there"), conn.Close())
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}

// address is a listener's address as --grpc-addr and --server take it; empty without a listener.
func address(l net.Listener) string {
	if l == nil {
		return ""
	}
	if l.Addr().Network() == "unix" {
		return unixPrefix + l.Addr().String()
	}
	return l.Addr().String()
}

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
