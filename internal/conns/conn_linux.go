package conns

import (
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"google.golang.org/grpc/mem"
)

// tcpUserTimeout is TCP_USER_TIMEOUT, which package syscall does not name.
const tcpUserTimeout = 18

// setUserTimeout does for a connection what gRPC does only for those that it knows: sent bytes that stay unacknowledged
// end it.
func setUserTimeout(conn net.Conn, timeout time.Duration) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok || timeout <= 0 {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return // it is closed
	}
	_ = raw.Control(func(fd uintptr) { // without it, keepalive ends the connection later
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(timeout.Milliseconds()))
	})
}

// readiness reads into a buffer that it takes when there is something to read, so that an idle connection has none.
type readiness struct {
	conn syscall.RawConn
	do   func(fd uintptr) bool

	size int
	pool mem.BufferPool
	buf  *[]byte
	n    int
	err  error
}

// rawReader is nil for a connection that cannot be read like that, such as one with TLS above it.
func rawReader(conn net.Conn, plain bool) *readiness {
	switch conn.(type) {
	case *net.TCPConn, *net.UnixConn:
	default:
		return nil
	}
	of, ok := conn.(syscall.Conn)
	if !plain || !ok {
		return nil
	}
	raw, err := of.SyscallConn()
	if err != nil {
		return nil
	}
	r := &readiness{conn: raw}
	r.do = func(fd uintptr) bool {
		r.buf = r.pool.Get(r.size)
		r.n, r.err = syscall.Read(int(fd), *r.buf)
		if r.err != nil {
			r.pool.Put(r.buf)
			r.buf = nil
		}
		return !errors.Is(r.err, syscall.EAGAIN) && !errors.Is(r.err, syscall.EINTR)
	}
	return r
}

func (r *readiness) read(size int, pool mem.BufferPool) (*[]byte, int, error) {
	r.size, r.pool, r.buf, r.n, r.err = size, pool, nil, 0, nil
	err := r.conn.Read(r.do)
	if err == nil {
		err = r.err
	}
	buf, n := r.buf, r.n
	r.buf = nil
	switch {
	case err != nil && buf != nil:
		pool.Put(buf)
		return nil, 0, err
	case err != nil:
		return nil, 0, err
	case n == 0:
		pool.Put(buf)
		return nil, 0, io.EOF
	}
	return buf, n, nil
}

// ReadOnReady is what gRPC reads by where a connection has it: see google.golang.org/grpc/internal/transport/readyreader.
func (f *framed) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	if f.raw == nil || f.doomed.Load() > 0 || len(f.inject) > 0 {
		buf := pool.Get(size)
		n, err := f.Read(*buf)
		if err != nil {
			pool.Put(buf)
			return nil, 0, err
		}
		return buf, n, nil
	}
	buf, n, err := f.raw.read(size, pool)
	if err != nil {
		if f.wokenBy(err) {
			return f.ReadOnReady(size, pool)
		}
		return nil, 0, err
	}
	if err := f.feed((*buf)[:n]); err != nil {
		pool.Put(buf)
		return nil, 0, err
	}
	return buf, n, nil
}
