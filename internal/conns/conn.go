package conns

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
)

// Conn is an accepted connection that counts against the bound.
type Conn struct {
	net.Conn

	g      *Guard
	host   string
	used   atomic.Int64 // when it was last used, as Guard.now
	busy   atomic.Bool  // HTTP: it has a request; gRPC: it has had one
	frames atomic.Pointer[framed]
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && c.g.o.HTTP2 == nil { // else a whole request is what makes it used
		c.used.Store(c.g.now())
	}
	return n, err
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if n > 0 && c.g.o.HTTP2 == nil {
		c.used.Store(c.g.now())
	}
	return n, err
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.g.mu.Lock()
	c.g.remove(c)
	c.g.mu.Unlock()
	if f := c.frames.Load(); f != nil {
		f.forget()
	}
	return c.Conn.Close()
}

// cut closes the connection on behalf of the guard. The server hears of it by the error of its next Read.
func (c *Conn) cut() { _ = c.Close() } // nothing is left to be said to this client

// framed counts the frames of what is read from plain, which is the connection or the TLS above it.
func (c *Conn) framed(plain net.Conn) *framed {
	f := &framed{Conn: plain, c: c, h: c.g.o.HTTP2}
	f.preface = prefaceLen
	f.bucket.tokens, f.bucket.at = c.g.firstResets(c.host), c.g.now()
	f.raw = rawReader(c.Conn, plain == net.Conn(c))
	c.frames.Store(f)
	return f
}

// Credentials are those of a server whose listener was told that it is encrypted.
func Credentials(of credentials.TransportCredentials) credentials.TransportCredentials {
	return creds{of}
}

type creds struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (t creds) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	plain, info, err := t.TransportCredentials.ServerHandshake(raw)
	if c, ok := raw.(*Conn); ok && err == nil {
		return c.framed(plain), info, nil
	}
	return plain, info, err
}

// ClientHandshake implements credentials.TransportCredentials.
func (t creds) ClientHandshake(
	ctx context.Context, authority string, raw net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	return t.TransportCredentials.ClientHandshake(ctx, authority, raw)
}

// Clone implements credentials.TransportCredentials.
func (t creds) Clone() credentials.TransportCredentials { return creds{t.TransportCredentials.Clone()} }

// framed is a connection whose frames are counted, for gRPC's server. One goroutine reads from it.
type framed struct {
	net.Conn

	c   *Conn
	h   *HTTP2
	raw *readiness // nil if Read is all there is

	writing   atomic.Int64 // since when a Write is under way, as Guard.now plus one; 0 if none is
	receiving atomic.Int64 // memory of its requests that have not arrived whole, in bytes
	doomed    atomic.Int32 // streams that wait to be reset
	inject    []byte       // frames that the server is to read next; the reader's own

	meter

	waking   sync.Mutex
	woken    bool      // the read deadline is in the past, to end a Read
	deadline time.Time // what the server set
}

// Read implements net.Conn.
func (f *framed) Read(p []byte) (int, error) {
	for {
		if f.doomed.Load() > 0 && len(f.inject) == 0 {
			f.inject = f.execute(f.inject)
		}
		if len(f.inject) > 0 {
			n := copy(p, f.inject)
			f.inject = f.inject[n:]
			return n, nil
		}
		n, err := f.Conn.Read(p)
		if n > 0 {
			if err := f.feed(p[:n]); err != nil {
				return 0, err
			}
		}
		if n == 0 && f.wokenBy(err) {
			continue
		}
		return n, err
	}
}

// Write implements net.Conn. The sweep sees how long it takes.
func (f *framed) Write(p []byte) (int, error) {
	f.writing.Store(f.c.g.now() + 1)
	n, err := f.Conn.Write(p)
	f.writing.Store(0)
	return n, err
}

// Close implements net.Conn.
func (f *framed) Close() error {
	if f.Conn == net.Conn(f.c) {
		return f.c.Close()
	}
	err := f.Conn.Close() // TLS says goodbye, and closes f.c
	return errors.Join(err, ignoreClosed(f.c.Close()))
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// SetDeadline implements net.Conn.
func (f *framed) SetDeadline(t time.Time) error {
	return errors.Join(f.SetReadDeadline(t), f.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (f *framed) SetReadDeadline(t time.Time) error {
	f.waking.Lock()
	defer f.waking.Unlock()
	f.deadline = t
	return f.Conn.SetReadDeadline(t)
}

// wake ends a Read that waits, so that it looks for streams to reset.
func (f *framed) wake() {
	f.waking.Lock()
	defer f.waking.Unlock()
	f.woken = true
	_ = f.Conn.SetReadDeadline(time.Unix(1, 0)) // of a closed connection: nobody reads there
}

// wokenBy says whether err is the end of a Read by wake, and lets the next one wait again.
func (f *framed) wokenBy(err error) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	f.waking.Lock()
	defer f.waking.Unlock()
	if !f.woken {
		return false
	}
	f.woken = false
	return f.Conn.SetReadDeadline(f.deadline) == nil
}
