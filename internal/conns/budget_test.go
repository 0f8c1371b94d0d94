package conns

import (
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// connections returns a guard of a listener, and what makes its connections.
func connections(t *testing.T, b *Budget, h *HTTP2) (connect func() *Conn) {
	t.Helper()
	g := New(Options{Name: "test", Max: 10, Budget: b, HTTP2: h, Log: slog.New(slog.DiscardHandler)})
	return func() *Conn {
		client, server := net.Pipe()
		c := &Conn{Conn: server, g: g}
		g.admit(c)
		t.Cleanup(func() { _, _ = client.Close(), c.Close() })
		return c
	}
}

func (c *Conn) open() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.isClosed
}

// Beyond the budget, of all listeners together, the connection is closed that has the most memory for the longest time.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(100)
		web, calls := connections(t, b, nil), connections(t, b, &HTTP2{})
		want := func(when string, used int64, open ...*Conn) {
			t.Helper()
			if b.Used() != used {
				t.Errorf("%s: %d bytes are used, want %d", when, b.Used(), used)
			}
			for i, c := range open {
				if !c.open() {
					t.Errorf("%s: connection %d is closed", when, i)
				}
			}
		}
		slow, honest, call := web(), web(), calls()
		slow.take(40)
		time.Sleep(time.Second)
		honest.take(50)
		call.take(10)
		want("at the bound", 100, slow, honest, call)
		call.take(1)
		want("beyond it", 61, honest, call)
		if slow.open() || slow.g.Stats().Refused[Memory] != 1 {
			t.Errorf("the connection that waits the longest is open: %+v", slow.g.Stats())
		}
		slow.take(-40)
		want("after an answer of a closed connection", 61, honest, call)
		honest.take(-50)
		want("after an answer was read", 11, honest, call)
		time.Sleep(time.Hour)
		large := web()
		large.take(50) // a thousand times as much as the busy connection, for a moment
		time.Sleep(time.Second)
		large.take(50)
		want("a busy connection has a little all the time", 11, call)
	})
}

// A host whose connection exceeds the budget gets no new one for a second: what the server still has of the old one
// counts nowhere. Other hosts get theirs.
func TestCutHostWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{Max: 10, Budget: NewBudget(100), Log: slog.New(slog.DiscardHandler)})
		connect := func(host string) (*Conn, bool) {
			_, server := net.Pipe()
			c := &Conn{Conn: server, g: g, host: host}
			return c, g.admit(c)
		}
		large, _ := connect("a")
		large.take(101)
		for _, step := range []struct {
			host string
			wait time.Duration
			want bool
		}{
			{"a", 0, false},
			{"b", 0, true},
			{"a", cutFor, false},
			{"a", time.Millisecond, true},
		} {
			time.Sleep(step.wait)
			if _, ok := connect(step.host); ok != step.want {
				t.Errorf("a connection of %s after %s more is admitted: %t", step.host, step.wait, ok)
			}
		}
		if n := g.Stats().Refused[Memory]; n != 3 {
			t.Errorf("%d refusals because of memory, want 3", n)
		}
	})
}

// An HTTP answer counts while the client does not read it, and one that is larger than the budget can be sent.
func TestHTTPAnswerCounts(t *testing.T) {
	b := NewBudget(1 << 20)
	g := New(Options{Name: "http", Max: 10, Budget: b, Log: slog.New(slog.DiscardHandler)})
	const size = 8 << 20
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(strings.Repeat("x", size)))
	})}
	g.Serve(s)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l = g.Listen(l, false)
	ended := make(chan error)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() { _, _ = s.Close(), <-ended })
	resp, err := http.Get("http://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if used := b.Used(); used != 1<<18 {
		t.Errorf("an answer that waits takes %d bytes", used)
	}
	n, err := resp.Body.Read(make([]byte, 10))
	for err == nil {
		var more int
		more, err = resp.Body.Read(make([]byte, 1<<20))
		n += more
	}
	_ = resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if n != size {
		t.Errorf("%d bytes arrived: %v", n, err)
	}
	for b.Used() != 0 { // the handler returns a moment later
		time.Sleep(time.Millisecond)
	}
}

// A gRPC answer counts, small or large, until gRPC is through with its buffers or the connection is closed.
func TestGRPCAnswerCounts(t *testing.T) {
	b := NewBudget(1 << 20)
	c := connections(t, b, &HTTP2{MaxResets: 1})()
	codec := Codec(encoding.GetCodecV2(proto.Name))
	ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: newHTTP2Conn(c, c).RemoteAddr()})
	for _, size := range []int{0, 100, 100_000} {
		message := wrapperspb.String(strings.Repeat("x", size))
		data, err := codec.Marshal(Answer(ctx, message))
		if err != nil {
			t.Fatal(err)
		}
		if used := b.Used(); used < int64(max(size, 1000)) || used > int64(size+2000) {
			t.Errorf("an answer of %d bytes takes %d", size, used)
		}
		plain, err := codec.Marshal(message)
		if err != nil {
			t.Fatal(err)
		}
		if string(plain.Materialize()) != string(data.Materialize()) {
			t.Error("the bytes are others")
		}
		data.Ref()
		data.Free()
		if b.Used() == 0 {
			t.Error("it no longer counts although it waits")
		}
		data.Free()
		if used := b.Used(); used != 0 {
			t.Errorf("%d bytes are used after it was sent", used)
		}
	}
	data, err := codec.Marshal(Answer(ctx, wrapperspb.String("x")))
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	data.Free()
	if used := b.Used(); used != 0 {
		t.Errorf("%d bytes are used after the connection was closed", used)
	}
}

// smallRequests are frames of n complete requests of requestCost each, from this stream on.
func smallRequests(from, n uint32) (frames []byte) {
	for stream := from; stream < from+2*n; stream += 2 {
		frames = append(frames, frameOf(frameHeaders, flagEndHeaders, stream, 10)...)
		frames = append(frames, frameOf(frameData, flagEndStream, stream, 0)...)
	}
	return frames
}

// A connection with more complete requests than all connections together may still have reads no further ones until
// some of its own are answered, delayed or reset. One with few never waits.
func TestRequestsWaitForResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(2 * 32 * requestCost)
		connect := connections(t, b, &HTTP2{MaxResets: 10_000})
		open := func() *http2Conn {
			f := newHTTP2Conn(connect(), nil)
			f.Conn, f.requests.preface = discarded{f.c}, 0
			return f
		}
		feed := func(f *http2Conn, frames []byte) {
			t.Helper()
			if err := f.feed(frames); err != nil {
				t.Fatal(err)
			}
		}
		reads := func(f *http2Conn) (isReady chan struct{}) {
			isReady = make(chan struct{})
			go func() {
				f.ready()
				close(isReady)
			}()
			return isReady
		}
		want := func(when string, isReady chan struct{}, mayRead bool) {
			t.Helper()
			synctest.Wait()
			select {
			case <-isReady:
				if !mayRead {
					t.Errorf("%s: the server reads", when)
				}
			default:
				if mayRead {
					t.Errorf("%s: the server does not read; %d bytes are used", when, b.Used())
				}
			}
		}
		const few = freeWork / requestCost
		many, other := open(), open()
		if n := many.readable(32 << 10); n != 32*minRequest {
			t.Errorf("the server reads %d bytes at once", n)
		}
		feed(many, smallRequests(1, 16))
		want("half of the budget", reads(many), true)
		feed(many, smallRequests(33, 24))
		if n := many.readable(32 << 10); n != minRequest {
			t.Errorf("the server reads %d bytes at once beyond the budget", n)
		}
		isReady := reads(many)
		want("beyond it", isReady, false)
		feed(other, smallRequests(1, few))
		want("few requests of another connection", reads(other), true)
		for stream := uint32(1); stream < 2*20; stream += 2 {
			_, _ = many.Write(frameOf(frameHeaders, flagEndHeaders|flagEndStream, stream, 10))
		}
		want("20 of 40 are answered", isReady, false)
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: many.RemoteAddr()})
		Work(ctx, -7, 0)
		want("7 of 20 are delayed", isReady, true)
		Work(ctx, 7, 0)
		isReady = reads(many)
		want("20 again", isReady, false)
		_ = many.c.Close()
		want("the connection is closed", isReady, true)
		feed(other, smallRequests(101, 20))
		for stream := uint32(101); stream < 101+2*20; stream += 2 {
			feed(other, frameOf(frameReset, 0, stream, 4))
		}
		if used := b.Used(); used != (few+20)*requestCost {
			t.Errorf("requests that were reset take %d bytes before the server has seen that", used)
		}
		want("20 are reset", reads(other), true)
		if used := b.Used(); used != few*requestCost {
			t.Errorf("%d bytes are used at the end", used)
		}
	})
}

// However many connections send the smallest requests, each has little more than freeWork once the others have taken
// the budget.
func TestManyConnectionsShareTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(2 * 32 * requestCost)
		connect := connections(t, b, &HTTP2{})
		var waiting sync.WaitGroup
		opened := make([]*http2Conn, 10)
		for i := range opened {
			var frames []byte
			for stream := uint32(1); stream < 2*1000; stream += 2 {
				frames = append(frames, frameOf(frameHeaders, flagEndHeaders|flagEndStream, stream, 6)...)
			}
			client, server := net.Pipe()
			go func() { _, _ = client.Write(frames) }()
			f := newHTTP2Conn(connect(), server)
			f.requests.preface = 0
			opened[i] = f
			before := b.Used()
			waiting.Go(func() {
				for f.c.open() {
					_, _ = f.Read(make([]byte, 32<<10))
				}
				_ = client.Close()
			})
			synctest.Wait()
			if n := b.Used() - before; i > 0 && (n < requestCost || n > freeWork+requestCost) {
				t.Errorf("connection %d takes %d bytes beyond the budget", i, n)
			}
		}
		for _, f := range opened {
			_ = f.c.Close()
		}
		waiting.Wait()
	})
}

// A connection that can no longer send responses is closed, although the server waits for them before it reads.
func TestBrokenConnectionDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(2 * 32 * requestCost)
		c := connections(t, b, &HTTP2{})()
		f := newHTTP2Conn(c, broken{c})
		f.requests.preface = 0
		if err := f.feed(smallRequests(1, 32)); err != nil {
			t.Fatal(err)
		}
		var isReady atomic.Bool
		go func() {
			f.ready()
			isReady.Store(true)
		}()
		synctest.Wait()
		if isReady.Load() || b.Used() != 32*requestCost {
			t.Fatalf("the server reads beyond the budget: %t, %d bytes", isReady.Load(), b.Used())
		}
		if _, err := f.Write(frameOf(frameHeaders, flagEndHeaders, 1, 10)); err == nil {
			t.Fatal("a response was sent")
		}
		synctest.Wait()
		if !isReady.Load() || b.Used() != 0 || c.open() {
			t.Errorf("ready: %t, open: %t, %d bytes are used", isReady.Load(), c.open(), b.Used())
		}
		_ = c.Close()
	})
}

// The time for which the server does not read does not count as the client's delay.
func TestWaitingIsNotSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := connections(t, NewBudget(2*32*requestCost), &HTTP2{ReceiveTimeout: patience, WriteTimeout: patience})()
		f := newHTTP2Conn(c, discarded{c})
		f.requests.preface = 0
		incomplete := frameOf(frameHeaders, flagEndHeaders, 3, 10)
		frames := slices.Concat(incomplete, smallRequests(5, 32), frameOf(frameData, 0, 3, 10)[:headerLen+1])
		if err := f.feed(frames); err != nil {
			t.Fatal(err)
		}
		var isReady atomic.Bool
		go func() {
			f.ready()
			isReady.Store(true)
		}()
		want := func(when string, at time.Duration, ready, stuck bool) {
			t.Helper()
			c.g.clock.Store(at.Milliseconds())
			synctest.Wait()
			if _, isStuck := f.stuck(at.Milliseconds()); isStuck != stuck || isReady.Load() != ready {
				t.Errorf("%s: stuck: %t, ready: %t", when, isStuck, isReady.Load())
			}
		}
		want("while the server waits", 2*patience, false, false)
		for stream := uint32(5); stream < 5+2*32; stream += 2 {
			_, _ = f.Write(frameOf(frameHeaders, flagEndHeaders|flagEndStream, stream, 10))
		}
		synctest.Wait()
		want("after the wait", 3*patience, true, false)
		want("after the client's time", 3*patience+time.Millisecond, true, true)
	})
}

// broken is a connection that the client has reset.
type broken struct{ *Conn }

func (broken) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// discarded is a connection whose client reads at once.
type discarded struct{ *Conn }

func (discarded) Write(p []byte) (int, error) { return len(p), nil }
