package conns

import (
	"bytes"
	"io"
	"testing"
	"time"
)

// An answer whose message is not sent in time is reset, and one that waits for the server is not.
func TestUnreadAnswer(t *testing.T) {
	h := &HTTP2{ReceiveTimeout: patience, MaxResets: 100, WriteTimeout: 100 * time.Millisecond}
	client, server, g := pair(t, h)
	request := make([]byte, prefaceLen)
	for stream := uint32(1); stream <= 9; stream += 2 {
		request = append(request, frameOf(frameHeaders, flagEndHeaders|flagEndStream, stream, 10)...)
	}
	request = append(request, frameOf(frameReset, 0, 7, 4)...)
	answer := frameOf(frameHeaders, flagEndHeaders, 1, 10) // its message is held back
	answer = append(answer, frameOf(frameHeaders, flagEndHeaders, 3, 10)...)
	answer = append(answer, grpcFrame(3, grpcMessage(30)[:20])...) // the end of its message is held back
	answer = append(answer, frameOf(frameHeaders, flagEndHeaders, 5, 10)...)
	answer = append(answer, grpcFrame(5, grpcMessage(30))...)                // a stream whose next message is not due
	answer = append(answer, frameOf(frameHeaders, flagEndHeaders, 7, 10)...) // crosses with the client's reset
	answer = append(answer, frameOf(frameHeaders, flagEndHeaders, 9, 10)...)
	answer = append(answer, grpcFrame(9, grpcMessage(1))...)
	answer = append(answer, frameOf(frameHeaders, flagEndHeaders|flagEndStream, 9, 10)...) // complete
	if _, err := client.Write(request); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(server, make([]byte, len(request))); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Write(answer); err != nil {
		t.Fatal(err)
	}
	if got, want := g.o.Budget.Used(), int64(3*streamCost); got != want {
		t.Errorf("answers take %d bytes, want %d", got, want)
	}
	want := []byte{0, 0, 4, frameWindowUpdate, 0, 0, 0, 0, 3, 0, 0, 0, 0}
	want = append(want, 0, 0, 4, frameWindowUpdate, 0, 0, 0, 0, 1, 0, 0, 0, 0)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(server, got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the server reads %x, want %x", got, want)
	}
	if s := g.Stats(); s.Refused[Unread] != 2 || g.o.Budget.Used() != streamCost || s.Open != 1 {
		t.Errorf("%+v", s)
	}
}

// An answer that begins before its request ends is followed after that.
func TestAnswerBeforeTheEndOfItsRequest(t *testing.T) {
	f := newConn()
	f.requests.preface = 0
	feed := func(text []byte) {
		t.Helper()
		if err := f.feed(text); err != nil {
			t.Fatal(err)
		}
	}
	send := func(text []byte) { f.answers.cut(text, 1, &f.answers) }
	feed(append(frameOf(frameHeaders, flagEndHeaders, 1, 10), frameOf(frameData, 0, 1, 10)...))
	send(frameOf(frameHeaders, flagEndHeaders, 1, 10))
	feed(frameOf(frameData, flagEndStream, 1, 0))
	if o := f.streams.get(1); o == nil || o.phase != answering {
		t.Errorf("a request that ends after its answer has begun: %+v", o)
	}
	send(frameOf(frameHeaders, flagEndHeaders|flagEndStream, 1, 10))
	if len(f.streams.list) != 0 {
		t.Errorf("after the answer: %+v", f.streams.list)
	}
}

// A large request counts until it is answered: its answer may be as large.
func TestLargeRequestCountsUntilItsAnswer(t *testing.T) {
	f := newConn()
	f.requests.preface = 0
	text := frameOf(frameHeaders, flagEndHeaders, 1, 10)
	for range 4 {
		text = append(text, frameOf(frameData, 0, 1, 16<<10)...)
	}
	if err := f.feed(append(text, frameOf(frameData, flagEndStream, 1, 1)...)); err != nil {
		t.Fatal(err)
	}
	took := f.c.g.o.Budget.Used()
	if took < 64<<10 {
		t.Errorf("a request of 64 KiB takes %d bytes before its answer", took)
	}
	for _, tc := range []struct {
		frame []byte
		want  int64
	}{
		{frameOf(frameHeaders, flagEndHeaders, 1, 10), took},
		{frameOf(frameHeaders, flagEndHeaders|flagEndStream, 1, 10), 0},
	} {
		f.answers.cut(tc.frame, 1, &f.answers)
		f.account()
		if got := f.c.g.o.Budget.Used(); got != tc.want {
			t.Errorf("it takes %d bytes after %x, want %d", got, tc.frame[:headerLen], tc.want)
		}
	}
}

// Headers that end a request end it only when they are complete, and empty pieces of them count as resets.
func TestHeadersThatEndARequest(t *testing.T) {
	f := newConn()
	f.requests.preface = 0
	if err := f.feed(frameOf(frameHeaders, flagEndStream, 1, 10)); err != nil {
		t.Fatal(err)
	}
	if len(f.streams.list) != 1 || f.c.busy.Load() {
		t.Errorf("headers that have not arrived completely: %+v", f.streams.list)
	}
	if err := f.feed(frameOf(frameContinuation, flagEndHeaders, 1, 10)); err != nil {
		t.Fatal(err)
	}
	if len(f.streams.list) != 0 || !f.c.busy.Load() {
		t.Errorf("after their end: %+v", f.streams.list)
	}
	if err := f.feed(frameOf(frameHeaders, flagEndStream, 3, 10)); err != nil {
		t.Fatal(err)
	}
	for range f.h.MaxResets {
		if err := f.feed(frameOf(frameContinuation, 0, 3, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.feed(frameOf(frameContinuation, 0, 3, 0)); err == nil {
		t.Error("empty CONTINUATION frames cost the client nothing")
	}
}

// A connection is closed whose client stops within a frame, or whose server does not read the reset of a stream.
func TestStuck(t *testing.T) {
	for _, tc := range []struct {
		name     string
		fed      []byte
		isMarked bool
		after    int64
	}{
		{"within a frame", frameOf(frameHeaders, flagEndHeaders, 1, 10)[:headerLen+1], false, patience.Milliseconds()},
		{"with a reset that is not read", frameOf(frameHeaders, flagEndHeaders, 1, 10), true, resetTimeout},
	} {
		f := newConn()
		f.requests.preface, f.h.ReceiveTimeout = 0, patience
		if err := f.feed(tc.fed); err != nil {
			t.Fatal(err)
		}
		if tc.isMarked {
			f.resetStreams(Slow, 0, func(*openStream) bool { return true })
		}
		if _, stuck := f.stuck(tc.after); stuck {
			t.Errorf("%s: stuck before its time", tc.name)
		}
		if why, stuck := f.stuck(tc.after + 1); !stuck || why != Slow {
			t.Errorf("%s: %t, %v", tc.name, stuck, why)
		}
	}
}
