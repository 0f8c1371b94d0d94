package conns

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/peer"
)

// newConn is a connection whose frames are fed by the test, after the preface.
func newConn(t *testing.T, h *HTTP2) *http2Conn {
	t.Helper()
	c := connections(t, NewBudget(1<<30), h)()
	f := newHTTP2Conn(c, discarded{c})
	f.requests.preface = 0
	return f
}

func frameOf(kind, flags byte, stream uint32, length int) []byte {
	head := []byte{byte(length >> 16), byte(length >> 8), byte(length), kind, flags}
	return append(binary.BigEndian.AppendUint32(head, stream), make([]byte, length)...)
}

// A request counts until its answer, a large one with all of its buffers, and an answer until its end.
func TestWhatCounts(t *testing.T) {
	head, end := byte(flagEndHeaders), byte(flagEndStream)
	const (
		received = streamCost + 20 // with headers of 10 bytes
		working  = requestCost + 10*decodedCost
	)
	type step struct {
		isAnswer bool
		frame    []byte
		want     int64
	}
	small := []step{
		{false, frameOf(frameHeaders, head, 1, 10), received},
		{false, frameOf(frameData, end, 1, 10), working},
	}
	for name, steps := range map[string][]step{
		"an answer without a window": append(slices.Clip(small),
			step{true, frameOf(frameHeaders, head, 1, 10), streamCost},
			step{true, frameOf(frameData, 0, 1, 1000), streamCost},
			step{true, frameOf(frameHeaders, head|end, 1, 10), 0}),
		"an answer that the client resets": append(slices.Clip(small),
			step{true, frameOf(frameHeaders, head, 1, 10), streamCost},
			step{false, frameOf(frameReset, 0, 1, 4), 0}),
		"an answer that crosses with its reset": append(slices.Clip(small),
			step{false, frameOf(frameReset, 0, 1, 4), working}, // until the server reads again
			step{true, frameOf(frameHeaders, head, 1, 10), working}),
		"an answer that refuses the request": append(slices.Clip(small),
			step{true, frameOf(frameHeaders, head|end, 1, 10), 0}),
		"headers alone": {
			{false, frameOf(frameHeaders, head|end, 1, 10), requestCost},
			{true, frameOf(frameReset, 0, 1, 4), 0},
		},
		"a request that ends twice":             append(slices.Clip(small), step{false, frameOf(frameData, end, 1, 0), working}),
		"the end of a request that never began": {{false, frameOf(frameData, end, 9, 10), 0}},
		"an answer before the end of its request": {
			{false, frameOf(frameHeaders, head, 1, 10), received},
			{true, frameOf(frameHeaders, head, 1, 10), received},
			{false, frameOf(frameData, end, 1, 0), received + bufferCost},
			{true, frameOf(frameHeaders, head|end, 1, 10), 0},
		},
		"a large request": {
			{false, frameOf(frameHeaders, head, 1, 10), received},
			{false, grpcFrame(1, grpcMessage(20<<10 - messageHead)[:16<<10]), received + 20<<10 + 2*bufferCost},
			{false, frameOf(frameData, end, 1, 4<<10), received + 20<<10 + 2*bufferCost},
			{true, frameOf(frameHeaders, head, 1, 10), received + 20<<10 + 2*bufferCost},
			{true, frameOf(frameHeaders, head|end, 1, 10), 0},
		},
		"headers in two frames": {
			{false, frameOf(frameHeaders, end, 1, 10), received},
			{false, frameOf(frameContinuation, head, 1, 10), received + 20},
			{true, frameOf(frameReset, 0, 1, 4), 0},
		},
	} {
		f := newConn(t, &HTTP2{MaxResets: 100})
		for i, s := range steps {
			if s.isAnswer {
				_, _ = f.Write(s.frame) // to nowhere
			} else if err := f.feed(s.frame); err != nil {
				t.Fatalf("%s, frame %d: %v", name, i, err)
			}
			if got := f.c.g.o.Budget.Used(); got != s.want {
				t.Errorf("%s, frame %d: %d bytes count, want %d", name, i, got, s.want)
			}
		}
	}
}

// The delay of a request removes no more memory than the request counts, however it was sent.
func TestWorkOfDelayedRequests(t *testing.T) {
	const small, large = 10_000, 60_000
	begin := func(size uint32) []byte { return grpcMessage(size)[:2000] }
	padded := func(length int) []byte { return frameOf(frameData, flagPadded, 1, length) }
	end := func(length int) []byte { return frameOf(frameData, flagEndStream, 1, length) }
	rest := func(length int) (frames []byte) {
		for ; length > maxFrame; length -= maxFrame {
			frames = append(frames, frameOf(frameData, 0, 1, maxFrame)...)
		}
		return append(frames, end(length)...)
	}
	for name, tc := range map[string]struct {
		frames  []byte
		size    int
		working int64 // during the delay, in bytes
	}{
		"small":        {slices.Concat(grpcFrame(1, begin(small)), rest(small+5-2000)), small, 0},
		"in one frame": {end(small + 5), small, 0},
		"large":        {slices.Concat(grpcFrame(1, begin(large)), rest(large+5-2000)), large, 0},
		"padded before": {
			slices.Concat(padded(maxFrame), grpcFrame(1, begin(large)), rest(large+5-2000)),
			small, decodedCost * (maxFrame + large - small),
		},
		"padded after": {
			slices.Concat(grpcFrame(1, begin(small)), padded(maxFrame), rest(small+5-2000)),
			small, decodedCost * maxFrame,
		},
		"two messages": {
			slices.Concat(grpcFrame(1, append(grpcMessage(100), begin(large)...)), rest(large+5-2000)),
			100, decodedCost * (large + 5),
		},
		"cut short": {slices.Concat(grpcFrame(1, begin(large)), end(0)), large, requestCost + decodedCost*2000},
	} {
		f := newConn(t, &HTTP2{MaxResets: 10})
		if err := f.feed(append(frameOf(frameHeaders, flagEndHeaders, 1, 10), tc.frames...)); err != nil {
			t.Fatal(err)
		}
		before := f.c.working
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: f.RemoteAddr()})
		Work(ctx, -1, tc.size)
		if f.c.working != tc.working {
			t.Errorf("%s: %d bytes count during the delay, want %d", name, f.c.working, tc.working)
		}
		Work(ctx, 1, tc.size)
		if f.c.working != before {
			t.Errorf("%s: %d bytes count after the delay, before %d", name, f.c.working, before)
		}
		_, _ = f.Write(frameOf(frameHeaders, flagEndHeaders|flagEndStream, 1, 10))
		if used := f.c.g.o.Budget.Used(); used != 0 {
			t.Errorf("%s: %d bytes are used after the response", name, used)
		}
	}
}

// The meter follows frames however they are cut, and answered requests take no memory.
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
		f := newConn(t, &HTTP2{MaxResets: 10})
		f.requests.preface = prefaceLen
		g := f.c.g
		for at := 0; at < len(text); at += piece {
			if err := f.feed(text[at:min(at+piece, len(text))]); err != nil {
				t.Fatal(err)
			}
		}
		for stream := uint32(1); stream < 2*requests-4; stream += 2 {
			_, _ = f.Write(frameOf(frameHeaders, flagEndHeaders|flagEndStream, stream, 10))
		}
		if f.requests.inFrame() || len(f.streams.list) != 1 || f.streams.list[0].id != 2*requests-1 {
			t.Errorf("in pieces of %d: %+v", piece, f.streams.list)
		}
		if got, want := g.o.Budget.Used(), int64(streamCost+200+300+bufferCost); got != want {
			t.Errorf("in pieces of %d: %d bytes are received, want %d", piece, got, want)
		}
		f.c.free()
		if err := f.feed(frameOf(frameHeaders, flagEndHeaders, 99, 10)); err != nil || g.o.Budget.Used() != 0 {
			t.Errorf("in pieces of %d: a closed connection takes %d bytes, %v", piece, g.o.Budget.Used(), err)
		}
	}
}

// Frames that make the server work for nothing count as resets. A client of grpc-go sends a PING for each answer, which
// is free however many requests come.
func TestFramesThatCountAsResets(t *testing.T) {
	const most = 10
	for name, frame := range map[string][]byte{
		"RST_STREAM":         frameOf(frameReset, 0, 1, 4),
		"PING":               frameOf(framePing, 0, 0, 8),
		"SETTINGS":           frameOf(frameSettings, 0, 0, 0),
		"empty DATA":         frameOf(frameData, 0, 1, 0),
		"empty CONTINUATION": frameOf(frameContinuation, 0, 1, 0),
		"an unknown one":     frameOf(99, 0, 1, 0),
	} {
		f := newConn(t, &HTTP2{MaxResets: most})
		for stream := uint32(1); stream < 200; stream += 2 {
			text := append(frameOf(frameHeaders, 4, stream, 10), frameOf(frameData, flagEndStream, stream, 10)...)
			text = append(text, frameOf(framePing, flagAck, 0, 8)...) // of the server's, which grpc-go answers
			if err := f.feed(append(text, frameOf(framePing, 0, 0, 8)...)); err != nil {
				t.Fatalf("request %d: %v", stream/2, err)
			}
		}
		f.c.g.clock.Store(time.Hour.Milliseconds())
		n := 0
		for f.feed(frame) == nil {
			n++
		}
		if n != most || f.c.g.Stats().Refused[Resets] != 1 {
			t.Errorf("%s: the connection ends after %d, want %d: %+v", name, n, most, f.c.g.Stats())
		}
	}
	f := newConn(t, &HTTP2{MaxResets: most})
	_ = f.feed(frameOf(frameReset, 0, 1, 4))
	_ = f.feed(frameOf(frameReset, 0, 1, 4))
	if err := f.feed(frameOf(frameReset, 0, 1, 4)); err == nil {
		t.Error("a new connection begins with more than a quarter of them")
	}
}

// Following a complete request and its answer allocates nothing.
func TestFeedAllocatesNothing(t *testing.T) {
	f := newConn(t, &HTTP2{MaxResets: 10})
	request := append(frameOf(frameHeaders, 4, 1, 50), frameOf(frameData, flagEndStream, 1, 100)...)
	answer := append(frameOf(frameHeaders, 4, 1, 50), frameOf(frameHeaders, flagEndStream, 1, 10)...)
	n := testing.AllocsPerRun(1000, func() {
		_ = f.feed(request)
		_, _ = f.Write(answer)
	})
	if n != 0 {
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
			f := newConn(t, &HTTP2{MaxResets: 10})
			text := frameOf(frameHeaders, 4, 1, 100)
			_ = f.feed(text)
			_, _ = f.Write(text) // the server answers
			text = nil
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

// A connection ends whose client stops within a frame, a request or a message, and not while a complete request waits
// for the server, or its answer for the client.
func TestStuck(t *testing.T) {
	head := frameOf(frameHeaders, flagEndHeaders, 1, 10)
	for _, tc := range []struct {
		name    string
		fed     [][]byte
		answer  []byte
		isStuck bool
	}{
		{"within a frame", [][]byte{head[:headerLen+1]}, nil, true},
		{"before its message", [][]byte{head}, nil, true},
		{"within a message", [][]byte{head, grpcFrame(1, append(grpcMessage(20), grpcMessage(20)[:8]...))}, nil, true},
		{"between two messages", [][]byte{head, grpcFrame(1, grpcMessage(20))}, nil, false},
		{"a large request", [][]byte{head, frameOf(frameData, flagEndStream, 1, 1<<16)}, nil, false},
		{"a request", [][]byte{head, frameOf(frameData, flagEndStream, 1, 1)}, nil, false},
		{"an answer", [][]byte{head, frameOf(frameData, flagEndStream, 1, 1)}, head, false},
	} {
		f := newConn(t, &HTTP2{MaxResets: 10, ReceiveTimeout: patience})
		for _, text := range tc.fed {
			if err := f.feed(text); err != nil {
				t.Fatal(err)
			}
		}
		_, _ = f.Write(tc.answer)
		if _, isStuck := f.stuck(patience.Milliseconds()); isStuck {
			t.Errorf("%s: stuck before its time", tc.name)
		}
		if why, isStuck := f.stuck(patience.Milliseconds() + 1); isStuck != tc.isStuck || isStuck && why != Slow {
			t.Errorf("%s: %t, %v", tc.name, isStuck, why)
		}
	}
}
