package conns

import (
	"encoding/binary"
	"slices"
	"time"
)

const (
	// maxSweepPause bounds the time between two sweeps, which is the resolution of the guard's clock.
	maxSweepPause = 250 * time.Millisecond
	// slowWrite is when a Write is slow, in milliseconds: the client does not read.
	slowWrite = 1000
	// resetTimeout is how long the server may take to read the reset of a request, in milliseconds.
	resetTimeout = 1000
)

// sweepUntil sets the clock and sweeps until the channel is closed.
func (g *Guard) sweepUntil(closed <-chan struct{}) {
	pause := min(maxSweepPause, g.o.HTTP2.ReceiveTimeout/8)
	tick := time.NewTicker(max(pause, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-closed:
			return
		case <-tick.C:
			g.sweep()
		}
	}
}

// sweep closes connections that are stuck, and resets streams that take too long.
func (g *Guard) sweep() {
	now := time.Since(g.start).Milliseconds()
	g.clock.Store(now)
	for _, f := range g.http2Conns() {
		if why, ok := f.stuck(now); ok {
			g.refuse(why, f.c.host)
			f.c.cutOff()
			continue
		}
		f.resetStreams(Slow, now, func(o *openStream) bool {
			return o.phase == receiving && !o.message.whole && now-o.since > g.o.HTTP2.ReceiveTimeout.Milliseconds()
		})
		f.resetStreams(Unread, now, func(o *openStream) bool {
			return o.phase == answering && !o.message.whole && now-o.since > g.o.HTTP2.WriteTimeout.Milliseconds()
		})
		if f.resetting.Load() > 0 {
			f.wake()
		}
	}
}

// http2Conns returns the connections whose frames are counted.
func (g *Guard) http2Conns() []*http2Conn {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make([]*http2Conn, 0, len(g.conns))
	for c := range g.conns {
		if f := c.http2.Load(); f != nil {
			all = append(all, f)
		}
	}
	return all
}

// stuck reports whether, and why, the connection is useless: a frame does not end, the server cannot read the reset of
// its requests, or the client does not read.
func (f *http2Conn) stuck(now int64) (Reason, bool) {
	if since := f.writing.Load(); since != 0 && now-since > f.h.WriteTimeout.Milliseconds() {
		return Unread, true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := &f.requests; r.preface == 0 && r.inFrame() && now-r.began > f.h.ReceiveTimeout.Milliseconds() {
		return Slow, true
	}
	for i := range f.streams.list {
		if o := &f.streams.list[i]; o.isReset && now-o.since > resetTimeout {
			return Slow, true
		}
	}
	return 0, false
}

// resetStreams marks streams for their reset, and counts them as refused.
func (f *http2Conn) resetStreams(why Reason, now int64, which func(*openStream) bool) {
	n := 0
	f.mu.Lock()
	for i := range f.streams.list {
		if o := &f.streams.list[i]; !o.isReset && which(o) {
			o.isReset, o.since = true, now
			n++
		}
	}
	f.resetting.Add(int32(n))
	f.mu.Unlock()
	for range n {
		f.c.g.refuse(why, f.c.host)
	}
}

// injectResets returns a frame for each marked stream, for the server to read, and drops the stream. Within a frame
// it returns none. It uses the memory of to.
//
// The frame is a WINDOW_UPDATE of 0, which the server must answer by a reset of that stream alone (RFC 9113, 6.9). A
// RST_STREAM would end the stream in the server, too, but tell the client nothing.
func (f *http2Conn) injectResets(to []byte) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	to = to[:0]
	if f.requests.inFrame() {
		return to
	}
	for _, o := range slices.Backward(f.streams.list) {
		if o.isReset {
			to = append(to, 0, 0, 4, frameWindowUpdate, 0)
			to = binary.BigEndian.AppendUint32(to, o.id)
			to = append(to, 0, 0, 0, 0)
			f.drop(o.id)
		}
	}
	f.account()
	return to
}
