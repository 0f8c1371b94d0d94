// Package listen opens the servers' addresses and reads their certificates.
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

// Except returns err, unless it is the expected error after closing a server or listener.
func Except(expected, err error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}

// SocketMode is the permissions of Unix sockets: for the user of the process and its group, which includes Envoy.
const SocketMode fs.FileMode = 0o660

// Listen opens the address of a flag: TCP, or a Unix socket with these permissions. If shared is true, other listeners
// may have the same address: any of them gets a TCP connection, the latest a connection to a Unix socket.
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
		u.SetUnlinkOnClose(!shared) // the path may belong to a newer listener
	}
	if isFile {
		if err := os.Chmod(path, mode); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: permissions of the socket: %w", flag, err), l.Close())
		}
	}
	return l, nil
}

// withMode sets the permissions of a Unix socket before it has a name, so that unauthorized clients can never connect:
// Linux creates the file with the permissions of the socket, minus the umask. On other systems it has no effect, and
// Listen sets the permissions just after creation.
func withMode(mode fs.FileMode) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = syscall.Fchmod(int(fd), uint32(mode.Perm())) })
	}
}

// reusePort allows several listeners of one TCP address, for an Envoy that updates a listener, and for two Envoys
// during a hot restart.
func reusePort(_, _ string, c syscall.RawConn) error {
	var err error
	failed := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	})
	return errors.Join(failed, err)
}

// removeStale removes a socket that an ended process has left at path. It returns an error if a process listens on the
// socket, unless shared is true, or if the file is not a socket.
func removeStale(ctx context.Context, path string, shared bool) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("the file exists and is not a socket; remove it or choose another path")
	}
	if shared {
		return os.Remove(path)
	}
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "unix", path)
	if err == nil {
		return errors.Join(errors.New("another process listens on this socket"), conn.Close())
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}

// Address returns a listener's address in the form of --grpc-addr and --server, or "" for nil.
func Address(l net.Listener) string {
	if l == nil {
		return ""
	}
	if l.Addr().Network() == "unix" {
		return flags.Unix + l.Addr().String()
	}
	return l.Addr().String()
}
