package app

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/internal/conns"
)

// raw is a client that sends frames as it likes.
type raw struct {
	t    *testing.T
	conn net.Conn
	*http2.Framer
	next  uint32        // the next stream
	ended chan struct{} // closed when the server has closed the connection
	reset chan uint32   // streams that the server has reset
}

// connect begins a connection, whose frames the test need not read.
func (p *process) connect() *raw {
	p.t.Helper()
	conn, err := net.Dial("tcp", p.app.GRPCAddr())
	if err != nil {
		p.t.Fatal(err)
	}
	r := &raw{
		t: p.t, conn: conn, Framer: http2.NewFramer(conn, conn), next: 1, ended: make(chan struct{}),
		reset: make(chan uint32, 1000),
	}
	_, _ = conn.Write([]byte(http2.ClientPreface)) // if the connection was refused, ended reports it
	_ = r.WriteSettings()
	go func() {
		defer close(r.ended)
		for {
			f, err := r.ReadFrame()
			if err != nil {
				return
			}
			if f, ok := f.(*http2.RSTStreamFrame); ok {
				select {
				case r.reset <- f.StreamID:
				default: // more than a test looks at
				}
			}
		}
	}()
	p.t.Cleanup(func() {
		_ = conn.Close()
		<-r.ended
	})
	return r
}

// head begins a request and returns its stream. The error is of a connection that is closed.
func (r *raw) head() (stream uint32, err error) {
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for _, h := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", pb.RateLimitService_ShouldRateLimit_FullMethodName},
		{":authority", "weir"},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	} {
		_ = e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}) // into memory
	}
	stream = r.next
	r.next += 2
	return stream, r.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: block.Bytes(),
		EndHeaders: true,
	})
}

// half sends the head of a request, and the first bytes of a message of the announced length.
func (r *raw) half(announced, sent int) (stream uint32, err error) {
	stream, err = r.head()
	if err != nil {
		return 0, err
	}
	message := make([]byte, 5+sent)
	binary.BigEndian.PutUint32(message[1:], uint32(announced))
	for len(message) > 0 && err == nil {
		n := min(len(message), 16<<10)
		err = r.WriteData(stream, false, message[:n])
		message = message[n:]
	}
	return stream, err
}

// closed waits until the server has closed the connection.
func (r *raw) closed() {
	r.t.Helper()
	select {
	case <-r.ended:
	case <-time.After(patience):
		r.t.Fatal("the server keeps the connection")
	}
}

// refused is how often a bound was reached, as /metrics has it.
func (p *process) refused(listener, reason string) string {
	p.t.Helper()
	return p.metric(fmt.Sprintf("weir_clients_refused_total{listener=%q,reason=%q}", listener, reason))
}

// A request that does not arrive whole ends its connection.
func TestHalfSentRequestEndsItsConnection(t *testing.T) {
	o := options(t, rulesOf("100"))
	o.Clients.ReceiveTimeout = 200 * time.Millisecond
	p := start(t, o)
	c := p.connect()
	if _, err := c.half(4000, 500); err != nil {
		t.Fatal(err)
	}
	c.closed()
	want(t, "slow requests", "1", func() string { return p.refused("grpc", "slow") })
	want(t, "bytes of half-sent requests", "0", func() string { return p.metric("weir_client_memory_bytes") })
	if got := p.ask("me"); got != "OK" {
		t.Errorf("a polite client: %s", got)
	}
	if n := p.logged("a connection was closed to protect Weir"); n != 1 {
		t.Errorf("%d lines of the log, want 1:\n%s", n, p.log)
	}
}

// Idle connections do not lock out those who come with a request.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	o := options(t, rulesOf("1000"))
	o.Clients.GRPC, o.Clients.HTTP = 8, 8
	p := start(t, o)
	busy := p.dial() // a client that asks all the time keeps its connection
	ask := func() string {
		t.Helper()
		return p.askOver(busy)
	}
	if got := ask(); got != "OK" {
		t.Fatal(got)
	}
	for range 30 {
		p.connect()
		conn, err := net.Dial("tcp", p.app.HTTPAddr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	// They come at the same moment, and none has been idle for long.
	want(t, "a new gRPC client", "OK", func() string { return p.askOver(p.dial()) })
	want(t, "/healthz of a new client", "200", func() string { return p.healthz() })
	if got := ask(); got != "OK" {
		t.Errorf("the client that asks all the time: %s", got)
	}
	if open := p.metric(`weir_connections{listener="grpc"}`); open != "8" {
		t.Errorf("%s gRPC connections, want 8", open)
	}
	for _, listener := range []string{"grpc", "http"} {
		if p.refused(listener, "idle") == "0" {
			t.Errorf("%s: no idle connection was closed", listener)
		}
	}
}

// A request's headers are bounded, too.
func TestLargeHeaders(t *testing.T) {
	p := start(t, options(t, rulesOf("1000")))
	c := p.connect()
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for i := range 1000 {
		_ = e.WriteField(hpack.HeaderField{Name: fmt.Sprintf("x-%d", i), Value: strings.Repeat("x", 100)})
	}
	text := block.Bytes()
	err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: text[:10_000]})
	for at := 10_000; at < len(text) && err == nil; at += 10_000 {
		end := min(at+10_000, len(text))
		err = c.WriteContinuation(1, end == len(text), text[at:end])
	}
	select {
	case <-c.reset:
	case <-c.ended: // the framer of gRPC gives up on far too many
	case <-time.After(patience):
		t.Errorf("headers of %d KiB are taken (%v)", len(text)>>10, err)
	}
}

// conns.ConnMemory is the memory of an idle connection.
func TestMemoryOfAConnection(t *testing.T) {
	p := start(t, options(t, rulesOf("1000")))
	inUse := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc + m.StackInuse)
	}
	before := inUse()
	const n = 200
	for range n {
		p.connect()
	}
	want(t, "connections", strconv.Itoa(n), func() string { return p.metric(`weir_connections{listener="grpc"}`) })
	each := (inUse() - before) / n // with the client's own side of it
	t.Logf("%d bytes each", each)
	if each > 3*conns.ConnMemory {
		t.Errorf("an idle connection takes %d bytes, ConnMemory says %d", each, conns.ConnMemory)
	}
}

// A compressed message is refused before it is decompressed: a megabyte of memory would cost a client a kilobyte.
func TestCompressedMessagesAreRefused(t *testing.T) {
	p := start(t, options(t, rulesOf("10")))
	for _, q := range []*pb.RateLimitRequest{inFlightOf("client"), {Domain: strings.Repeat("a", 1<<20)}} {
		_, err := p.client.ShouldRateLimit(t.Context(), q, grpc.UseCompressor(gzip.Name), grpc.WaitForReady(true))
		if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "compressed messages are not supported") {
			t.Errorf("a compressed message: %v", err)
		}
	}
	if got := p.ask("a"); got != "OK" {
		t.Errorf("a message without compression: %s", got)
	}
}
