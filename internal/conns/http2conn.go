package conns

import (
	"math"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// http2Conn is a connection of a gRPC server. It follows the frames that the server reads and writes. One goroutine
// reads from the connection and one writes to it.
type http2Conn struct {
	net.Conn

	c *Conn
	h *HTTP2

	writing atomic.Int64 // when the current Write began, by Guard.now, plus one; 0 if there is none
	resumed atomic.Int64 // when ready last ended a wait, by Guard.now; math.MaxInt64 while it waits
	kept    []byte       // bytes that have been read and not processed; only the reader uses it

	wmu sync.Mutex // held while bytes are written

	mu       sync.Mutex // protects the fields below; for the reader, the writer and the sweep
	streams  openStreams
	requests requests
	answers  answers

	isGreeted  bool   // whether the client was sent firstWindow
	updates    []byte // WINDOW_UPDATE frames to write
	isFlushing bool   // whether flush is about to run
}

// newHTTP2Conn follows the frames of c. plain is c, or the TLS connection that decrypts c.
func newHTTP2Conn(c *Conn, plain net.Conn) *http2Conn {
	f := &http2Conn{Conn: plain, c: c, h: c.g.o.HTTP2}
	f.requests = requests{
		f: f, cutter: cutter{preface: prefaceLen}, tokens: firstResets * float64(f.h.MaxResets), tokensAt: c.g.now(),
	}
	f.answers.f = f
	c.http2.Store(f)
	return f
}

func (f *http2Conn) Read(p []byte) (int, error) {
	f.ready()
	n := copy(p, f.kept)
	if f.kept = f.kept[n:]; n == 0 {
		var err error
		if n, err = f.Conn.Read(p); n == 0 {
			return 0, err
		}
	}
	first := f.readable(n) // only now, because others may have taken the room while Read waited
	f.kept = slices.Concat(p[first:n], f.kept)
	if err := f.feed(p[:first]); err != nil {
		return 0, err
	}
	return first, nil
}

// readable returns how many of n bytes the server may process at once, so that their requests take no more than all
// connections together may still take, or than freeWork. The rest of a frame begins no request.
func (f *http2Conn) readable(n int) int {
	f.c.mu.Lock()
	room := max(f.c.g.o.Budget.room(), freeWork-f.c.working, requestCost)
	f.c.mu.Unlock()
	return min(n, f.requests.skip+int(room/requestCost)*minRequest) // only the reader changes skip
}

// ready returns when the server may read: when the connection's complete requests take no more memory than all
// connections together may still take. So each connection gets the same part of the budget if many want it, and waits
// only for its own responses.
func (f *http2Conn) ready() {
	c := f.c
	if n := f.requests.abandoned; n > 0 { // only the reader uses it
		f.requests.abandoned = 0
		runtime.Gosched() // the goroutines of these requests run first
		c.work(-n)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.answered.L = &c.mu; !c.isClosed && c.working > max(freeWork, c.g.o.Budget.room()); {
		f.resumed.Store(math.MaxInt64)
		c.answered.Wait()
		f.resumed.Store(c.g.now())
	}
}

// feed follows the bytes that the server has read. If it returns an error, the server closes the connection.
func (f *http2Conn) feed(p []byte) error {
	now := f.c.g.now()
	f.mu.Lock()
	ok := f.requests.cut(p, now, &f.requests)
	completed := f.requests.completed
	f.requests.completed = false
	f.account()
	f.mu.Unlock()
	if completed {
		f.c.used.Store(now)
		f.c.busy.Store(true)
	}
	if !ok {
		f.c.g.refuse(Resets, f.c.host)
		return errResets
	}
	return nil
}

func (f *http2Conn) Write(p []byte) (int, error) {
	f.wmu.Lock()
	defer f.wmu.Unlock()
	now := f.c.g.now()
	f.mu.Lock()
	text := f.takeUpdates(now)
	if !f.isGreeted {
		f.isGreeted, text = true, slices.Concat(announced, text)
	}
	f.answers.cut(p, now, &f.answers)
	if held := f.answers.updates; len(text)+len(held) > 0 {
		text = append(slices.Clip(text), without(p, held)...)
		f.answers.updates = held[:0]
	} else {
		text = p
	}
	text = append(slices.Clip(text), f.takeUpdates(now)...)
	f.account()
	f.mu.Unlock()
	if err := f.write(text); err != nil {
		return 0, err
	}
	return len(p), nil
}

// write writes frames. If that fails, it closes the connection. The caller must hold f.wmu.
func (f *http2Conn) write(text []byte) error {
	if len(text) == 0 {
		return nil
	}
	f.writing.Store(f.c.g.now() + 1)
	_, err := f.Conn.Write(text)
	f.writing.Store(0)
	if err != nil { // gRPC leaves the rest to the reader, which may be waiting for responses that cannot be sent
		f.c.cutOff()
	}
	return err
}

// stuck reports whether the connection must be closed, and the reason: the client does not read, or a frame or a
// request takes too long to arrive, not counting the time before the server last waited for responses.
func (f *http2Conn) stuck(now int64) (Reason, bool) {
	if since := f.writing.Load(); since != 0 && now-since > f.h.WriteTimeout.Milliseconds() {
		return Unread, true
	}
	isLate := func(since int64) bool { return now-max(since, f.resumed.Load()) > f.h.ReceiveTimeout.Milliseconds() }
	f.mu.Lock()
	defer f.mu.Unlock()
	f.account() // other connections may have freed memory
	if r := &f.requests; r.preface == 0 && r.inFrame() && isLate(r.began) {
		return Slow, true
	}
	return Slow, slices.ContainsFunc(f.streams.list, func(o openStream) bool {
		return !o.complete && !o.message.whole && o.window != windowWanted && isLate(o.since)
	})
}

// Decrypted bounds the requests of an encrypted connection and returns the connection that the server must use.
// accepted is the connection that the listener returned; plain decrypts it.
func Decrypted(accepted, plain net.Conn) net.Conn {
	if c, ok := accepted.(*Conn); ok {
		return newHTTP2Conn(c, plain)
	}
	return plain
}
