package adminapi

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// DefaultSocket is the value of --admin-socket for the socket that belongs to the HTTP address.
const DefaultSocket = "auto"

// Socket returns the path of the admin socket for these values of --admin-socket and --http-addr, @NAME for an abstract
// socket, or "" for none. Processes and commands use the same function.
func Socket(flag, httpAddr string) string {
	if flag != DefaultSocket {
		return flag
	}
	if path, ok := strings.CutPrefix(httpAddr, "unix:"); ok {
		return path + ".admin"
	}
	_, port, err := net.SplitHostPort(httpAddr)
	switch {
	case err != nil:
		return ""
	case runtime.GOOS == "linux":
		return "@weir-" + port // an abstract socket needs no writable folder, and ends with its process
	default:
		return filepath.Join(os.TempDir(), "weir-"+port+".sock")
	}
}

// IsAbstract reports whether the socket is abstract, not a file. Abstract sockets have no permissions, so each side
// checks the other's user.
func IsAbstract(socket string) bool { return strings.HasPrefix(socket, "@") }

// ListensOn reports whether a process listens on the socket. Because everybody may create an abstract socket, the
// listening process must have the user of this process, unless this user is root.
func ListensOn(socket string) bool {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(context.Background(), "unix", socket)
	if err != nil {
		return false
	}
	defer conn.Close() //nolint:errcheck // nothing was written
	if !IsAbstract(socket) || os.Geteuid() == 0 {
		return true
	}
	user, ok := peerUser(conn)
	return ok && user == os.Geteuid()
}

// SameUser returns a listener that accepts only connections from this process's user or root, for an abstract socket.
// It closes all other connections.
func SameUser(l net.Listener) net.Listener { return sameUser{l} }

type sameUser struct{ net.Listener }

// Accept implements net.Listener.
func (l sameUser) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if user, ok := peerUser(conn); ok && (user == 0 || user == os.Geteuid()) {
			return conn, nil
		}
		_ = conn.Close() // nothing was written
	}
}
