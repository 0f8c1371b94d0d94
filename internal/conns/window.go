package conns

import (
	"encoding/binary"
	"slices"

	"github.com/weir-ratelimit/weir/internal/panics"
)

const (
	// firstWindow is the initial flow-control window of a client's streams, in bytes. A longer request waits until the
	// Budget has room for all of it, because its first part occupies memory until its last part has arrived. So a client
	// with many large requests is slowed down rather than disconnected.
	firstWindow = 4 << 10
	// grpcWindow is the initial window that gRPC assumes, in bytes, and the smallest that gRPC can announce.
	grpcWindow = 64<<10 - 1
	// roomPart is the part of the budget for admitted requests; the rest is for first parts of waiting requests, and for
	// frames' overhead. A request of up to lonePart of the budget need not wait for other connections.
	roomPart, lonePart = 0.4, 1.0 / 64
	updateLen          = headerLen + 4 // length of a WINDOW_UPDATE frame
)

// announced is the SETTINGS frame that announces firstWindow to a client.
var announced = []byte{0, 0, 6, frameSettings, 0, 0, 0, 0, 0, 0, 4, 0, 0, firstWindow >> 8, firstWindow & 0xff}

// window is the state of a stream's flow-control window.
type window uint8

const (
	windowFirst  window = iota // firstWindow
	windowWanted               // firstWindow; the request is longer and waits for free memory
	windowOpen                 // the size that gRPC announces
)

// judge decides by the first bytes of a stream whether its window must grow. ended reports whether a message has ended
// in the latest bytes. The caller must hold f.mu.
func (f *http2Conn) judge(o *openStream, ended bool) {
	switch m := &o.message; {
	case o.window != windowFirst:
	case ended: // a stream of several messages, or a request whose end has not arrived
		f.open(o)
	case m.hasPrefix() && m.size > firstWindow-messageHead:
		o.window, o.isLarge = windowWanted, m.size > largeMessage
		f.streams.wanted++
	}
}

// open makes the next flush or Write send the client the window that gRPC has opened. The caller must hold f.mu.
func (f *http2Conn) open(o *openStream) {
	o.window = windowOpen
	f.updates = append(f.updates, 0, 0, 4, frameWindowUpdate, 0)
	f.updates = binary.BigEndian.AppendUint32(f.updates, o.id)
	f.updates = binary.BigEndian.AppendUint32(f.updates, grpcWindow-firstWindow+o.held)
	if !f.isFlushing {
		f.isFlushing = true
		panics.Go("flow control", f.flush)
	}
}

// flush writes the updates. If the server has written only a part of a frame, it leaves them to the next Write.
func (f *http2Conn) flush() {
	f.wmu.Lock()
	defer f.wmu.Unlock()
	f.mu.Lock()
	f.isFlushing = false
	text := f.takeUpdates(f.c.g.now())
	f.mu.Unlock()
	_ = f.write(text) // the server gets the error, too
}

// takeUpdates returns the updates if the server is between two frames, else nil. The caller must hold f.mu.
func (f *http2Conn) takeUpdates(now int64) (text []byte) {
	if !f.answers.inFrame() {
		text, f.updates = f.updates, nil
		f.answers.cut(text, now, &f.answers)
	}
	return text
}

// without returns p without the WINDOW_UPDATE frames at these indexes, which must wait.
func without(p []byte, updates []int) (rest []byte) {
	from := 0
	for _, at := range updates {
		rest = append(rest, p[from:at]...)
		from = at + updateLen
	}
	return append(rest, p[from:]...)
}

// admit opens the window of the connection's next waiting request, if the connection's requests take no more of the
// budget's part than is left for all connections. If the connection has no admitted request, a short request needs no
// room, and a longer one needs only some room. The caller must hold f.mu.
func (f *http2Conn) admit() (admitted bool) {
	s, b := &f.streams, f.c.g.o.Budget
	i := slices.IndexFunc(s.list, func(o openStream) bool { return o.window == windowWanted })
	if i < 0 || f.c.closed() {
		return false
	}
	o := &s.list[i]
	frames := int64(o.message.left)/maxFrame + 1
	need := min(frames*bufferSize(int(min(o.message.left, maxFrame))), b.most/2, 1<<30)
	left := int64(roomPart*float64(b.most)) - b.arriving.Load()
	hasRoom := b.used.Load()+need <= b.most && (s.arriving+need <= left || s.arriving == 0 && left > 0)
	isLone := s.arriving == 0 && need <= int64(lonePart*float64(b.most))
	if !isLone && !hasRoom {
		return false
	}
	s.wanted--
	s.arriving += need
	o.admitted, o.reserved, o.since = int32(need), int32(need), f.c.g.now() //nolint:gosec // at most 1<<30
	s.grow(o, need)
	f.open(o)
	return true
}
