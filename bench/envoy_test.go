package main

import (
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func TestReadResponse(t *testing.T) {
	const head = "HTTP/1.1 429 Too Many Requests\r\ncontent-length: 5\r\nserver: envoy\r\n\r\n"
	for in, want := range map[string]string{
		head + "hello": "",
		head + "hell":  "EOF",
		"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n": "without a length",
	} {
		status, err := readResponse(iotest.OneByteReader(strings.NewReader(in)), make([]byte, 200))
		if want == "" && (err != nil || status != "429") {
			t.Errorf("status %q, %v; want 429", status, err)
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: error %v, want %q", in, err, want)
		}
	}
}

// TestFrontAsks asks the upstream itself, as if it were Envoy.
func TestFrontAsks(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go serveUpstream(l)
	f := &front{name: nameNone, addr: l.Addr().String()}
	got := inParallel(4, func(_ int, t2 *tally) {
		request := httpRequests(1)[0]
		f.ask(t.Context(), func() []byte { return request }, time.Now().Add(50*time.Millisecond), t2)
	})
	if err := got.failed(); err != nil || got.ok < 4 || got.ok != got.latency.total {
		t.Errorf("%d answers, %d latencies, %v", got.ok, got.latency.total, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.answers(t.Context()); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("error %v, want that of the connection", err)
	}
}
