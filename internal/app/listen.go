package app

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
)

// unixPrefix starts an address that is the path of a Unix socket.
const unixPrefix = "unix:"

// listen opens the address that the flag names: TCP, or a Unix socket with the given permissions.
func listen(ctx context.Context, flag, addr string, mode fs.FileMode) (net.Listener, error) {
	network := "tcp"
	path, unix := strings.CutPrefix(addr, unixPrefix)
	if unix {
		network, addr = "unix", path
		if err := removeStale(ctx, path); err != nil {
			return nil, fmt.Errorf("%s: listening on %s%s: %w", flag, unixPrefix, path, err)
		}
	}
	var lc net.ListenConfig
	if unix {
		lc.Control = withMode(mode)
	}
	l, err := lc.Listen(ctx, network, addr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	if unix {
		if err := os.Chmod(path, mode); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: permissions of the socket: %w", flag, err), l.Close())
		}
	}
	return l, nil
}

// withMode gives a Unix socket its permissions before it has a name, so that nobody can connect who may not: Linux makes the
// file with those of the socket, less the umask. Elsewhere this does nothing, and the file has its permissions a moment
// later.
func withMode(mode fs.FileMode) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = syscall.Fchmod(int(fd), uint32(mode.Perm())) })
	}
}

// removeStale removes the socket that a process which is gone has left at path. It removes nothing that
// somebody listens on, and nothing that is no socket.
func removeStale(ctx context.Context, path string) error {
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

// address is how a listener is told to people, and what --grpc-addr of a client would be.
func address(l net.Listener) string {
	if l == nil {
		return ""
	}
	if l.Addr().Network() == "unix" {
		return unixPrefix + l.Addr().String()
	}
	return l.Addr().String()
}
