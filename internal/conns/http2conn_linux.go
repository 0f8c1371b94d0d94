package conns

import (
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/mem"
)

// setUserTimeout makes the kernel close the connection if the client does not acknowledge sent bytes in time. gRPC sets
// this option only on a *net.TCPConn, and Guard wraps the connection.
func setUserTimeout(conn net.Conn, timeout time.Duration) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok || timeout <= 0 {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return // the connection is closed
	}
	_ = raw.Control(func(fd uintptr) { // on error, gRPC's keepalive closes the connection later
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(timeout.Milliseconds()))
	})
}

// readyConn allocates its buffer only when bytes have arrived, so that an idle connection has none.
type readyConn struct {
	*http2Conn

	raw syscall.RawConn
	try func(fd uintptr) bool // returns false if no bytes have arrived yet

	size int
	pool mem.BufferPool
	buf  *[]byte
	n    int
	err  error
}

// readyToRead returns f as a readyConn if accepted, from which f reads, has a file descriptor; otherwise f.
func readyToRead(f *http2Conn, accepted net.Conn) net.Conn {
	of, ok := accepted.(syscall.Conn)
	if !ok {
		return f
	}
	raw, err := of.SyscallConn()
	if err != nil {
		return f
	}
	r := &readyConn{http2Conn: f, raw: raw}
	r.try = func(fd uintptr) bool {
		r.buf = r.pool.Get(r.size)
		r.n, r.err = syscall.Read(int(fd), (*r.buf)[:r.readable(len(*r.buf))])
		if r.err != nil {
			r.pool.Put(r.buf)
			r.buf = nil
		}
		return !errors.Is(r.err, syscall.EAGAIN) && !errors.Is(r.err, syscall.EINTR)
	}
	return r
}

// ReadOnReady implements google.golang.org/grpc/internal/transport/readyreader, which gRPC prefers to Read.
func (r *readyConn) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	r.ready()
	r.size, r.pool, r.buf, r.n, r.err = size, pool, nil, 0, nil
	err := r.raw.Read(r.try)
	switch {
	case err != nil:
	case r.err != nil:
		err = r.err
	case r.n == 0:
		err = io.EOF
	default:
		err = r.feed((*r.buf)[:r.n])
	}
	buf := r.buf
	r.buf = nil
	if err != nil {
		if buf != nil {
			pool.Put(buf)
		}
		return nil, 0, err
	}
	return buf, r.n, nil
}
