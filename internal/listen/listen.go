// Package listen opens the addresses of the servers, and reads their certificates.
package listen

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/flags"
)

// Except returns the error, unless it is the expected one of a server or listener that was closed before.
func Except(expected, err error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}

// SocketMode is the permissions of Unix sockets: for the user of the process, and its group, which Envoy is in.
const SocketMode fs.FileMode = 0o660

// Listen opens the address that the flag names: TCP, or a Unix socket with the given permissions. If it is shared,
// other listeners may have the same address: connections go to any listener of a TCP address, and to the newest
// listener of a Unix socket.
func Listen(ctx context.Context, flag, addr string, mode fs.FileMode, shared bool) (net.Listener, error) {
	network := "tcp"
	path, isUnix := strings.CutPrefix(addr, flags.Unix)
	isFile := isUnix && !adminapi.IsAbstract(path)
	if isUnix {
		network, addr = "unix", path
	}
	if isFile {
		if err := removeStale(ctx, path, shared); err != nil {
			return nil, fmt.Errorf("%s: listening on %s%s: %w", flag, flags.Unix, path, err)
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

// Address returns a listener's address as --grpc-addr and --server take it; empty without a listener.
func Address(l net.Listener) string {
	if l == nil {
		return ""
	}
	if l.Addr().Network() == "unix" {
		return flags.Unix + l.Addr().String()
	}
	return l.Addr().String()
}
