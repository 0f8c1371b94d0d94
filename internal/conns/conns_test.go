package conns

import (
	"bytes"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

// pair is a client, and the server's side of its connection.
func pair(t *testing.T, h *HTTP2) (client, server net.Conn, g *Guard) {
	t.Helper()
	g = New(Options{Name: "grpc", Max: 10, Budget: NewBudget(1 << 20), HTTP2: h, Log: slog.New(slog.DiscardHandler)})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l = g.Listen(l, false)
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Close()
		_ = server.Close()
		_ = l.Close()
	})
	return client, server, g
}

// A client that does not read is cut off.
func TestUnread(t *testing.T) {
	_, server, g := pair(t, &HTTP2{
		ReceiveTimeout: patience, MaxResets: 100, WriteTimeout: 100 * time.Millisecond,
	})
	ended := make(chan error, 1)
	go func() {
		text := make([]byte, 1<<20)
		for {
			if _, err := server.Write(text); err != nil {
				ended <- err
				return
			}
		}
	}()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the Write ends well")
		}
	case <-time.After(patience):
		t.Fatal("the server still writes")
	}
	if s := g.Stats(); s.Refused[Unread] != 1 || s.Open != 0 {
		t.Errorf("%+v", s)
	}
}

func frameOf(kind, flags byte, stream uint32, length int) []byte {
	head := []byte{byte(length >> 16), byte(length >> 8), byte(length), kind, flags}
	return append(binary.BigEndian.AppendUint32(head, stream), make([]byte, length)...)
}

// newConn is a connection whose frames are fed by the test.
func newConn() *http2Conn {
	bounds := &HTTP2{MaxResets: 10}
	g := New(Options{Name: "grpc", Max: 1, Budget: NewBudget(1 << 30), HTTP2: bounds, Log: slog.New(slog.DiscardHandler)})
	return newHTTP2Conn(&Conn{g: g}, nil)
}

// The meter follows frames however they are cut, and complete requests take no memory.
func TestFramesInPieces(t *testing.T) {
	text := make([]byte, prefaceLen)
	text = append(text, frameOf(frameSettings, 0, 0, 0)...)
	const requests = 7
	for stream := uint32(1); stream < 2*requests; stream += 2 {
		text = append(text, frameOf(frameHeaders, 4, stream, 100)...)
		text = append(text, frameOf(frameData, 0, stream, 300)...)
	}
	for stream := uint32(1); stream < 2*requests-4; stream += 2 {
		text = append(text, frameOf(frameData, flagEndStream, stream, 5000)...)
	}
	text = append(text, frameOf(frameReset, 0, 2*requests-3, 4)...)
	for _, piece := range []int{1, 2, 3, 8, 9, 10, 1000, len(text)} {
		f := newConn()
		g := f.c.g
		for at := 0; at < len(text); at += piece {
			if err := f.feed(text[at:min(at+piece, len(text))]); err != nil {
				t.Fatal(err)
			}
		}
		if f.requests.inFrame() || len(f.streams.list) != 1 || f.streams.list[0].id != 2*requests-1 {
			t.Errorf("in pieces of %d: %+v", piece, f.streams.list)
		}
		if got, want := g.o.Budget.Used(), int64(streamCost+200+300+bufferCost); got != want {
			t.Errorf("in pieces of %d: %d bytes are received, want %d", piece, got, want)
		}
		f.c.free()
		if got := g.o.Budget.Used(); got != 0 {
			t.Errorf("in pieces of %d: %d bytes are received after the end", piece, got)
		}
	}
}

// A client of grpc-go sends a PING for each answer, which is free however many requests come. Others count.
func TestPingForEachRequest(t *testing.T) {
	f := newConn()
	if err := f.feed(make([]byte, prefaceLen)); err != nil {
		t.Fatal(err)
	}
	for stream := uint32(1); stream < 200; stream += 2 {
		text := append(frameOf(frameHeaders, 4, stream, 10), frameOf(frameData, flagEndStream, stream, 10)...)
		text = append(text, frameOf(framePing, flagAck, 0, 8)...) // of the server's, which grpc-go answers
		if err := f.feed(append(text, frameOf(framePing, 0, 0, 8)...)); err != nil {
			t.Fatalf("request %d: %v", stream/2, err)
		}
	}
	pings := 0
	for f.feed(frameOf(framePing, 0, 0, 8)) == nil {
		pings++
	}
	if most := f.h.MaxResets; pings == 0 || pings > most+1 {
		t.Errorf("%d PINGs without a request, want at most %d", pings, most)
	}
}

// A stream is reset between two frames, never within one.
func TestResetBetweenFrames(t *testing.T) {
	h := &HTTP2{ReceiveTimeout: 50 * time.Millisecond, MaxResets: 100, WriteTimeout: patience}
	client, server, g := pair(t, h)
	text := append(make([]byte, prefaceLen), frameOf(frameHeaders, 4, 1, 10)...)
	if _, err := client.Write(text); err != nil {
		t.Fatal(err)
	}
	want := append(bytes.Clone(text), 0, 0, 4, frameWindowUpdate, 0, 0, 0, 0, 1, 0, 0, 0, 0)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(server, got); err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("the server reads %x, want %x", got, want)
	}
	if s := g.Stats(); s.Refused[Slow] != 1 || g.o.Budget.Used() != 0 {
		t.Errorf("%+v", s)
	}
	// A deadline of the server's own still ends a Read.
	if err := server.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Read(got); err == nil {
		t.Error("a Read goes beyond its deadline")
	}
}

// Following a complete request allocates nothing.
func TestFeedAllocatesNothing(t *testing.T) {
	f := newConn()
	f.requests.preface = 0
	request := append(frameOf(frameHeaders, 4, 1, 50), frameOf(frameData, flagEndStream, 1, 100)...)
	if n := testing.AllocsPerRun(1000, func() { _ = f.feed(request) }); n != 0 {
		t.Errorf("%v allocations a request", n)
	}
}

// grpcFrame is a DATA frame of a stream that goes on, with this payload.
func grpcFrame(stream uint32, payload []byte) []byte {
	f := frameOf(frameData, 0, stream, len(payload))
	return append(f[:headerLen], payload...)
}

// grpcMessage is a gRPC message of so many bytes.
func grpcMessage(length uint32) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, length), make([]byte, length)...)
}

// A stream of several messages is complete between them, however they are cut into frames, and frames into reads.
func TestMessagesOfAStream(t *testing.T) {
	wire := append(grpcMessage(0), append(grpcMessage(3), grpcMessage(1000)...)...)
	for _, size := range []int{1, 4, 5, 6, 13, 700, len(wire)} {
		for _, piece := range []int{1, 7, 10_000} {
			f := newConn()
			f.h.Streams, f.requests.preface = true, 0
			text := frameOf(frameHeaders, 4, 1, 100)
			for at := 0; at < len(wire); at += size {
				text = append(text, grpcFrame(1, wire[at:min(at+size, len(wire))])...)
			}
			f.c.g.clock.Store(5)
			for at := 0; at < len(text); at += piece {
				if err := f.feed(text[at:min(at+piece, len(text))]); err != nil {
					t.Fatal(err)
				}
			}
			r := f.streams.list[0]
			if !r.message.whole || r.since != 5 || f.c.g.o.Budget.Used() != streamCost || !f.c.busy.Load() {
				t.Errorf("frames of %d read by %d: %+v, %d bytes", size, piece, r, f.c.g.o.Budget.Used())
			}
			f.c.g.clock.Store(9)
			if err := f.feed(grpcFrame(1, grpcMessage(10)[:7])); err != nil {
				t.Fatal(err)
			}
			if r := f.streams.list[0]; r.message.whole || r.since != 9 || f.c.g.o.Budget.Used() <= streamCost {
				t.Errorf("a message that has begun: %+v", r)
			}
		}
	}
}

// A stream is reset that sends no message, or stops within one, but not between two.
func TestResetWithinAMessage(t *testing.T) {
	h := &HTTP2{
		ReceiveTimeout: 100 * time.Millisecond, MaxResets: 100, WriteTimeout: patience, Streams: true,
	}
	client, server, g := pair(t, h)
	text := make([]byte, prefaceLen)
	for stream := uint32(1); stream <= 5; stream += 2 {
		text = append(text, frameOf(frameHeaders, 4, stream, 10)...)
	}
	text = append(text, grpcFrame(1, grpcMessage(20))...)
	text = append(text, grpcFrame(3, append(grpcMessage(20), grpcMessage(20)[:8]...))...)
	if _, err := client.Write(text); err != nil {
		t.Fatal(err)
	}
	want := append(bytes.Clone(text), 0, 0, 4, frameWindowUpdate, 0, 0, 0, 0, 5, 0, 0, 0, 0)
	want = append(want, 0, 0, 4, frameWindowUpdate, 0, 0, 0, 0, 3, 0, 0, 0, 0)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(server, got); err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("the server reads %x, want %x", got, want)
	}
	if s := g.Stats(); s.Refused[Slow] != 2 || g.o.Budget.Used() != streamCost {
		t.Errorf("%+v", s)
	}
	// Frees the stream that is still open, and counts no further one.
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	conn, ok := server.(*http2Conn)
	if !ok {
		t.Fatalf("the connection is a %T", server)
	}
	if err := conn.feed(frameOf(frameHeaders, flagEndHeaders, 7, 10)); err != nil {
		t.Fatal(err)
	}
	if used := g.o.Budget.Used(); used != 0 {
		t.Errorf("a closed connection takes %d bytes", used)
	}
}
