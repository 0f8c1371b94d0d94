package conns

import (
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// http2Conn is a connection of a gRPC server. It follows the frames that the server reads and writes, and hands the
// server frames that reset streams. One goroutine reads from it, and one writes.
type http2Conn struct {
	net.Conn

	c   *Conn
	h   *HTTP2
	raw *readyReader // nil if the connection has only Read

	writing   atomic.Int64 // when the Write under way began, by Guard.now, plus one; 0: there is none
	resetting atomic.Int32 // streams that wait for their reset
	injected  []byte       // frames that the server reads next; only the reader uses it

	mu       sync.Mutex // of the reader, the writer, and the sweep
	streams  openStreams
	requests requests
	answers  answers
	// unwritten is the memory of the answers, in bytes, to requests that came during a slow Write: the next Write ends it.
	unwritten int64

	waking   sync.Mutex
	isWoken  bool      // wake has set the read deadline into the past
	deadline time.Time // as the server has set it
}

// newHTTP2Conn counts the frames of c. plain is c itself, or the TLS connection above it.
func newHTTP2Conn(c *Conn, plain net.Conn) *http2Conn {
	f := &http2Conn{Conn: plain, c: c, h: c.g.o.HTTP2}
	f.requests = requests{
		f: f, cutter: cutter{preface: prefaceLen}, resets: tokenBucket{c.g.firstResets(c.host), c.g.now()},
	}
	f.answers.f = f
	f.raw = newReadyReader(c.Conn, plain == net.Conn(c))
	c.http2.Store(f)
	return f
}

func (f *http2Conn) Read(p []byte) (int, error) {
	for {
		if f.resetting.Load() > 0 && len(f.injected) == 0 {
			f.injected = f.injectResets(f.injected)
		}
		if len(f.injected) > 0 {
			n := copy(p, f.injected)
			f.injected = f.injected[n:]
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

// feed follows the bytes that the server has read. An error closes the connection.
func (f *http2Conn) feed(p []byte) error {
	now := f.c.g.now()
	f.mu.Lock()
	ok := f.requests.cut(p, now, &f.requests)
	completed := f.requests.completed > 0
	if since := f.writing.Load(); since != 0 && now-since > slowWrite {
		f.unwritten += streamCost * f.requests.completed
		f.streams.change += streamCost * f.requests.completed
	}
	f.requests.completed = 0
	f.account()
	f.mu.Unlock()
	if completed {
		f.c.used.Store(now)
		f.c.busy.Store(true)
	}
	if !ok {
		f.c.g.refuse(Resets, f.c.host)
		f.c.g.punish(f.c.host)
		return errResets
	}
	return nil
}

// drop removes a stream, if it is open. f.mu is locked.
func (f *http2Conn) drop(stream uint32) {
	i, ok := f.streams.find(stream)
	if !ok {
		return
	}
	o := &f.streams.list[i]
	f.streams.change -= o.memory
	if o.isReset {
		f.resetting.Add(-1)
	}
	f.streams.list = slices.Delete(f.streams.list, i, i+1)
}

func (f *http2Conn) Write(p []byte) (int, error) {
	now := f.c.g.now()
	f.mu.Lock()
	f.answers.cut(p, now, &f.answers)
	f.streams.change -= f.unwritten
	f.unwritten = 0
	f.account()
	f.mu.Unlock()
	f.writing.Store(now + 1)
	n, err := f.Conn.Write(p)
	f.writing.Store(0)
	return n, err
}

func (f *http2Conn) SetDeadline(t time.Time) error {
	return errors.Join(f.SetReadDeadline(t), f.SetWriteDeadline(t))
}

func (f *http2Conn) SetReadDeadline(t time.Time) error {
	f.waking.Lock()
	defer f.waking.Unlock()
	f.deadline = t
	return f.Conn.SetReadDeadline(t)
}

// wake ends a Read that waits, so that it looks for requests to reset.
func (f *http2Conn) wake() {
	f.waking.Lock()
	defer f.waking.Unlock()
	f.isWoken = true
	_ = f.Conn.SetReadDeadline(time.Unix(1, 0)) // fails if the connection is closed: nobody reads then
}

// wokenBy reports whether wake caused the error of a Read, and lets the next Read wait again.
func (f *http2Conn) wokenBy(err error) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	f.waking.Lock()
	defer f.waking.Unlock()
	if !f.isWoken {
		return false
	}
	f.isWoken = false
	return f.Conn.SetReadDeadline(f.deadline) == nil
}

// Decrypted bounds what happens within an encrypted connection, and returns the connection that the server is to use.
// accepted is what the listener has returned, plain the connection above it that decrypts.
func Decrypted(accepted, plain net.Conn) net.Conn {
	if c, ok := accepted.(*Conn); ok {
		return newHTTP2Conn(c, plain)
	}
	return plain
}
