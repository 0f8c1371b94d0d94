package conns

import (
	"encoding/binary"
	"slices"
	"time"
)

const (
	// maxSweepPause bounds the pause between two sweeps; it is how coarse the guard's clock is.
	maxSweepPause = 250 * time.Millisecond
	// resetPatience is how long the server may take to read that a stream is reset, in milliseconds.
	resetPatience = 1000
)

// sweepUntil keeps the clock, and looks for what takes too long, until closed is.
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

func (g *Guard) sweep() {
	now := time.Since(g.start).Milliseconds()
	g.clock.Store(now)
	for _, f := range g.frames() {
		if why, ok := f.stuck(now); ok {
			g.refuse(why, f.c.host)
			f.c.cut()
			continue
		}
		if n := f.doom(now, func(h *half) bool { return now-h.since > g.o.HTTP2.ReceiveTimeout.Milliseconds() }); n > 0 {
			for range n {
				g.refuse(Slow, f.c.host)
			}
		}
		if f.doomed.Load() > 0 {
			f.wake()
		}
	}
}

// frames are the connections whose frames are counted.
func (g *Guard) frames() []*framed {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make([]*framed, 0, len(g.conns))
	for c := range g.conns {
		if f := c.frames.Load(); f != nil {
			all = append(all, f)
		}
	}
	return all
}

// stuck says whether the connection is of no use any more: a frame of it does not end, the server is kept from reading
// that its streams are reset, or the client does not read.
func (f *framed) stuck(now int64) (Reason, bool) {
	if since := f.writing.Load(); since != 0 && now-since > f.h.WriteTimeout.Milliseconds() {
		return Unread, true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.preface == 0 && f.inFrame() && now-f.began > f.h.ReceiveTimeout.Milliseconds() {
		return Slow, true
	}
	for i := range f.half {
		if h := &f.half[i]; h.doomed && now-h.since > resetPatience {
			return Slow, true
		}
	}
	return 0, false
}

// doom marks the requests that are to be reset, and returns how many it has marked.
func (f *framed) doom(now int64, which func(*half) bool) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.half {
		if h := &f.half[i]; !h.doomed && which(h) {
			h.doomed, h.since = true, now
			f.doomed.Add(1)
			n++
		}
	}
	return n
}

// execute appends a frame for each request that is to be reset, for the server to read, and forgets the request. Between
// two bytes of a frame it does nothing.
//
// The frame is a WINDOW_UPDATE of 0, which RFC 9113, 6.9, has the server answer by a reset of that stream alone. A
// RST_STREAM would end it here, too, but tell the client nothing.
func (f *framed) execute(to []byte) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	to = to[:0]
	if f.inFrame() {
		return to
	}
	for i, h := range slices.Backward(f.half) {
		if h.doomed {
			to = append(to, 0, 0, 4, frameWindowUpdate, 0)
			to = binary.BigEndian.AppendUint32(to, h.stream)
			to = append(to, 0, 0, 0, 0)
			f.drop(i)
		}
	}
	f.account()
	return to
}

// account notes the change of the memory that half-sent requests take. It says whether it is too much. f is locked.
func (f *framed) account() bool {
	change := f.change
	if f.change = 0; change == 0 || f.closed {
		return false
	}
	f.receiving.Add(change)
	g := f.c.g
	return g.receiving.Add(change) > g.o.HTTP2.MaxReceiving && change > 0
}

// relieve resets the half-sent requests of the connection that has the most of them, so that others have room.
func (g *Guard) relieve() {
	var most *framed
	for _, f := range g.frames() {
		if f.doomed.Load() == 0 && (most == nil || f.receiving.Load() > most.receiving.Load()) {
			most = f
		}
	}
	if most == nil {
		return // all are about to be reset
	}
	most.mu.Lock()
	within := most.inFrame()
	most.mu.Unlock()
	if within { // it could not be told soon
		g.refuse(Memory, most.c.host)
		most.c.cut()
		return
	}
	n := most.doom(g.now(), func(*half) bool { return true })
	for range n {
		g.refuse(Memory, most.c.host)
	}
	most.wake()
}

// forget is called when the connection is closed: what it had received is freed with it.
func (f *framed) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.half, f.change, f.closed = f.half[:0], 0, true
	f.doomed.Store(0)
	f.c.g.receiving.Add(-f.receiving.Swap(0))
}
