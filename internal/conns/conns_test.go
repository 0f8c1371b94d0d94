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
	g = New(Options{Name: "grpc", Max: 10, HTTP2: h, Log: slog.New(slog.DiscardHandler)})
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
		ReceiveTimeout: patience, MaxReceiving: 1 << 20, MaxResets: 100, WriteTimeout: 100 * time.Millisecond,
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

func frame(kind, flags byte, stream uint32, length int) []byte {
	head := []byte{byte(length >> 16), byte(length >> 8), byte(length), kind, flags}
	return append(binary.BigEndian.AppendUint32(head, stream), make([]byte, length)...)
}

// newConn is a connection whose frames are fed by the test.
func newConn() *http2Conn {
	bounds := &HTTP2{MaxReceiving: 1 << 30, MaxResets: 10}
	g := New(Options{Name: "grpc", Max: 1, HTTP2: bounds, Log: slog.New(slog.DiscardHandler)})
	return newHTTP2Conn(&Conn{g: g}, nil)
}

// The meter follows frames however they are cut, and complete requests take no memory.
func TestFramesInPieces(t *testing.T) {
	text := make([]byte, prefaceLen)
	text = append(text, frame(frameSettings, 0, 0, 0)...)
	const requests = 7
	for stream := uint32(1); stream < 2*requests; stream += 2 {
		text = append(text, frame(frameHeaders, 4, stream, 100)...)
		text = append(text, frame(frameData, 0, stream, 300)...)
	}
	for stream := uint32(1); stream < 2*requests-4; stream += 2 {
		text = append(text, frame(frameData, flagEndStream, stream, 5000)...)
	}
	text = append(text, frame(frameReset, 0, 2*requests-3, 4)...)
	for _, piece := range []int{1, 2, 3, 8, 9, 10, 1000, len(text)} {
		f := newConn()
		g := f.c.g
		for at := 0; at < len(text); at += piece {
			if err := f.feed(text[at:min(at+piece, len(text))]); err != nil {
				t.Fatal(err)
			}
		}
		if f.inFrame() || len(f.incomplete) != 1 || f.incomplete[0].stream != 2*requests-1 {
			t.Errorf("in pieces of %d: %+v", piece, f.incomplete)
		}
		if got, want := g.receiving.Load(), int64(streamCost+200+300+bufferCost); got != want {
			t.Errorf("in pieces of %d: %d bytes are received, want %d", piece, got, want)
		}
		f.freeAll()
		if got := g.receiving.Load(); got != 0 {
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
		text := append(frame(frameHeaders, 4, stream, 10), frame(frameData, flagEndStream, stream, 10)...)
		text = append(text, frame(framePing, flagAck, 0, 8)...) // of the server's, which grpc-go answers
		if err := f.feed(append(text, frame(framePing, 0, 0, 8)...)); err != nil {
			t.Fatalf("request %d: %v", stream/2, err)
		}
	}
	pings := 0
	for f.feed(frame(framePing, 0, 0, 8)) == nil {
		pings++
	}
	if most := f.h.MaxResets; pings == 0 || pings > most+1 {
		t.Errorf("%d PINGs without a request, want at most %d", pings, most)
	}
}

// A stream is reset between two frames, never within one.
func TestResetBetweenFrames(t *testing.T) {
	h := &HTTP2{ReceiveTimeout: 50 * time.Millisecond, MaxReceiving: 1 << 20, MaxResets: 100, WriteTimeout: patience}
	client, server, g := pair(t, h)
	text := append(make([]byte, prefaceLen), frame(frameHeaders, 4, 1, 10)...)
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
	if s := g.Stats(); s.Refused[Slow] != 1 || s.Receiving != 0 {
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
	f.preface = 0
	request := append(frame(frameHeaders, 4, 1, 50), frame(frameData, flagEndStream, 1, 100)...)
	if n := testing.AllocsPerRun(1000, func() { _ = f.feed(request) }); n != 0 {
		t.Errorf("%v allocations a request", n)
	}
}

func BenchmarkFeed(b *testing.B) {
	f := newConn()
	f.preface = 0
	request := append(frame(frameHeaders, 4, 1, 50), frame(frameData, flagEndStream, 1, 100)...)
	b.ReportAllocs()
	for b.Loop() {
		if err := f.feed(request); err != nil {
			b.Fatal(err)
		}
	}
}
