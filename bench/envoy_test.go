package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
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

// counted is a service that counts its requests.
type counted struct {
	noop

	asked atomic.Uint64
}

func (c *counted) ShouldRateLimit(ctx context.Context, req *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	c.asked.Add(1)
	return c.noop.ShouldRateLimit(ctx, req)
}

// TestThroughEnvoy measures a real Envoy before a service in this process: with the filter each request is asked for
// once, without it none is.
func TestThroughEnvoy(t *testing.T) {
	fewKeys(t)
	service := &counted{}
	o := &options{
		out: filepath.Join(t.TempDir(), "envoy"),
		settings: settings{
			Rounds: 2, Duration: 50 * time.Millisecond, WarmUp: time.Millisecond, Concurrency: 4, Connections: 1,
			Algorithm: "none",
		},
	}
	targets := []*target{newTarget(nameNoop, serve(t, service), true)}
	var table strings.Builder
	if err := o.throughEnvoy(t.Context(), t.TempDir(), targets, &table, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\n4 outstanding:\n", "\n1 outstanding:\n", "\n| no filter | ", "\n| no-op service | "} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, table.String())
		}
	}
	text, err := os.ReadFile(o.out + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var r envoyReport
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != 4 {
		t.Fatalf("%d rows, want 2 fronts with 4 outstanding and with 1", len(r.Rows))
	}
	for i, row := range r.Rows {
		none, filtered := r.Rows[i&^1], i%2 == 1
		for round, s := range row.Rounds {
			if s.ReqPerSec <= 0 || s.P50 <= 0 || s.P50 > s.P99 || s.Envoy <= 0 || s.RSS < 10 || s.RSS > 1000 {
				t.Errorf("%s: %+v", row.Front, s)
			}
			if n := none.Rounds[round]; s.AddedCPU != s.Envoy-n.Envoy || s.AddedP50 != s.P50-n.P50 {
				t.Errorf("%s: %+v; want what is added to %+v", row.Front, s, n)
			}
			if (s.Server > 0) != filtered {
				t.Errorf("%s: the service took %g us for each request", row.Front, s.Server)
			}
		}
	}
	if service.asked.Load() == 0 {
		t.Error("the service was not asked")
	}
}

// TestFrontAsksItsService has a real Envoy with the filter and one without before a service that begins to deny.
func TestFrontAsksItsService(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go serveUpstream(l)
	var denies atomic.Bool
	service := serve(t, &limits{deny: func(*pb.RateLimitRequest) bool { return denies.Load() }})
	for _, f := range []*front{noFilter(), asking("w1", newTarget("denies", service, false))} {
		denies.Store(false)
		if err := f.start(t.Context(), t.TempDir(), l.Addr().String()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Stop(patience) })
		denies.Store(true)
		want := ""
		if f.filter != "" {
			want = "1 requests failed, the first with: status 429 of Envoy, want 200"
		}
		got := ""
		if err := f.answers(t.Context()); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: error %q, want %q", f.name, got, want)
		}
	}
}

func TestFrontTitle(t *testing.T) {
	for name, want := range map[string]string{
		nameNone: "no filter", nameNoop: "no-op service", namePeer: "envoyproxy/ratelimit", "redis": "Weir, redis",
	} {
		if got := frontTitle(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
