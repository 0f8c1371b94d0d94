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

// setUserTimeout closes a connection whose client does not acknowledge sent bytes in time. gRPC sets it only on
// connections that it knows to be TCP.
func setUserTimeout(conn net.Conn, timeout time.Duration) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok || timeout <= 0 {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return // the connection is closed
	}
	_ = raw.Control(func(fd uintptr) { // if this fails, keepalive ends the connection later
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(timeout.Milliseconds()))
	})
}

// readyReader takes a buffer only when there is something to read, so that an idle connection has none.
type readyReader struct {
	conn syscall.RawConn
	try  func(fd uintptr) bool // false: there is nothing to read yet

	size int
	pool mem.BufferPool
	buf  *[]byte
	n    int
	err  error
}

// newReadyReader returns nil for a connection that cannot be read like that, such as one with TLS.
func newReadyReader(conn net.Conn, plain bool) *readyReader {
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
	r := &readyReader{conn: raw}
	r.try = func(fd uintptr) bool {
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

func (r *readyReader) read(size int, pool mem.BufferPool) (*[]byte, int, error) {
	r.size, r.pool, r.buf, r.n, r.err = size, pool, nil, 0, nil
	err := r.conn.Read(r.try)
	if err == nil {
		err = r.err
	}
	if err != nil {
		return nil, 0, err // without a buffer: try has put it back
	}
	buf := r.buf
	r.buf = nil
	if r.n == 0 {
		pool.Put(buf)
		return nil, 0, io.EOF
	}
	return buf, r.n, nil
}

// ReadOnReady is how gRPC reads from a connection that has it: see
// google.golang.org/grpc/internal/transport/readyreader.
func (f *http2Conn) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	if f.raw == nil || f.resetting.Load() > 0 || len(f.injected) > 0 {
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
