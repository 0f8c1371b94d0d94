package conns

import (
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// recorded is a connection whose client reads at once, and keeps the frames.
type recorded struct {
	*Conn
	mu  sync.Mutex
	all []byte
}

func (r *recorded) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, p...)
	return len(p), nil
}

// window returns how much the client may send on the stream.
func (r *recorded) window(stream uint32) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p := r.all; len(p) > 0; p = p[headerLen+int(p[2]):] {
		switch {
		case p[3] == frameSettings && p[2] == 6:
			n += int(binary.BigEndian.Uint32(p[11:]))
		case p[3] == frameWindowUpdate && binary.BigEndian.Uint32(p[5:]) == stream:
			n += int(binary.BigEndian.Uint32(p[9:]))
		}
	}
	return n
}

// begin begins a request of so many bytes, for which the server opens the window.
func (f *http2Conn) begin(t *testing.T, stream uint32, size int) {
	t.Helper()
	message := frameOf(frameData, 0, stream, firstWindow)
	binary.BigEndian.PutUint32(message[headerLen+1:], uint32(size))
	if err := f.feed(append(frameOf(frameHeaders, flagEndHeaders, stream, 10), message...)); err != nil {
		t.Fatal(err)
	}
	update := binary.BigEndian.AppendUint32(frameOf(frameWindowUpdate, 0, stream, 4)[:headerLen], uint32(size))
	ping := frameOf(framePing, flagAck, 0, 8)
	if _, err := f.Write(slices.Concat(ping, update, ping)); err != nil {
		t.Fatal(err)
	}
}

// A long request waits for room, and one that stands still does not delay short ones of others.
func TestLongRequestsTakeTurns(t *testing.T) {
	g := connections(t, NewBudget(24<<20), &HTTP2{MaxResets: 100})
	open := func() (*http2Conn, *recorded) {
		c := g()
		to := &recorded{Conn: c}
		f := newHTTP2Conn(c, net.Conn(to))
		f.requests.preface = 0
		return f, to
	}
	wait := func(what string, to *recorded, stream uint32, want int) {
		t.Helper()
		proctest.Await(t, proctest.Patience, func() error {
			if got := to.window(stream); got != want {
				return fmt.Errorf("%s: a window of %d bytes, want %d", what, got, want)
			}
			return nil
		})
	}
	long, toLong := open()
	long.begin(t, 1, 4<<20)
	long.begin(t, 3, 4<<20)
	wait("the first one", toLong, 1, grpcWindow+4<<20)
	short, toShort := open()
	short.begin(t, 1, 100<<10)
	short.begin(t, 3, 100<<10)
	wait("a short one of another connection", toShort, 1, grpcWindow+100<<10)
	wait("its second one", toShort, 3, grpcWindow+100<<10)
	if got := toLong.window(3); got != firstWindow {
		t.Errorf("the second long one has a window of %d bytes", got)
	}
	_ = long.feed(frameOf(frameReset, 0, 1, 4))
	wait("the second long one after the first", toLong, 3, grpcWindow+4<<20)
	for range 2 {
		other, toOther := open()
		other.begin(t, 1, 4<<20)
		wait("a long one of another connection", toOther, 1, grpcWindow+4<<20)
	}

	next, toNext := open()
	next.begin(t, 1, 1<<20)
	if got := toNext.window(1); got != firstWindow {
		t.Errorf("one that has no room has a window of %d bytes", got)
	}
	last, toLast := open()
	last.begin(t, 1, 100<<10)
	wait("a short one that has no room", toLast, 1, grpcWindow+100<<10)
	_ = long.c.Close()
	next.c.g.sweep()
	wait("one that waits for a connection that is closed", toNext, 1, grpcWindow+1<<20)
}

// Requests that wait for room cost a client its connection only if many clients have them: together they take no more
// than the budget, and nothing from others.
func TestWaitingRequestsAreBounded(t *testing.T) {
	for _, clients := range []int{1, 9} {
		b := NewBudget(24 << 20)
		connect := connections(t, b, &HTTP2{MaxResets: 100})
		var all []*http2Conn
		for range clients + 1 {
			c := connect()
			f := newHTTP2Conn(c, net.Conn(&recorded{Conn: c}))
			f.requests.preface = 0
			all = append(all, f)
		}
		other := all[clients]
		if err := other.feed(frameOf(frameHeaders, flagEndHeaders, 1, 1000)); err != nil {
			t.Fatal(err)
		}
		var requests []byte
		for stream := uint32(1); stream < 2000; stream += 2 {
			prefix := frameOf(frameData, 0, stream, 5)
			binary.BigEndian.PutUint32(prefix[headerLen+1:], 3_600_000)
			requests = slices.Concat(requests, frameOf(frameHeaders, flagEndHeaders, stream, 50), prefix)
		}
		for _, f := range all[:clients] {
			if err := f.feed(requests); err != nil {
				t.Fatal(err)
			}
		}
		if used := b.Used(); used > 24<<20 {
			t.Errorf("%d clients that wait take %d bytes", clients, used)
		}
		if !other.c.open() {
			t.Errorf("%d clients that wait cost another one its connection", clients)
		}
		if clients == 1 && !all[0].c.open() {
			t.Error("a client with 1,000 requests that wait is cut off")
		}
	}
}
