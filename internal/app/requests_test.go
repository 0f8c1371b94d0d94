package app

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// series returns the lines of /metrics that begin with prefix.
func (p *process) series(prefix string) []string {
	p.t.Helper()
	resp, err := http.Get("http://" + p.app.HTTPAddr() + "/metrics")
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read from
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(body)) {
		if strings.HasPrefix(line, prefix) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

// send asks with raw bytes, and returns the error's code.
func (p *process) send(wire []byte) codes.Code {
	p.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+p.app.GRPCAddr(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // one request
	err = conn.Invoke(p.t.Context(), pb.RateLimitService_ShouldRateLimit_FullMethodName, wire, &emptypb.Empty{},
		grpc.ForceCodec(rawCodec{}), grpc.WaitForReady(true))
	return status.Code(err)
}

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Name() string                { return "proto" }
func (rawCodec) Unmarshal([]byte, any) error { return nil }
func (rawCodec) Marshal(v any) ([]byte, error) {
	return v.([]byte), nil //nolint:errcheck,forcetypeassert // send's own
}

// Requests count once, however many limits decide them, and those that gRPC refuses count, too.
func TestRequestsAreCounted(t *testing.T) {
	o := options(t, `
domain: shop
descriptors:
  - key: client
    rate_limits:
      - {name: yearly, requests_per_unit: 3, unit: year}
      - {name: shorter, requests_per_unit: 2, window: 300d}
      - {name: longer, requests_per_unit: 100, window: 1000d}
`)
	o.MaxMessage = 1 << 10
	p := start(t, o)
	for range 10 {
		p.ask("a")
	}
	if code := p.send(make([]byte, 2<<10)); code != codes.ResourceExhausted {
		t.Errorf("a large request is answered by %s", code)
	}
	if code := p.send([]byte{0xff}); code != codes.Internal {
		t.Errorf("a malformed request is answered by %s", code)
	}
	got := append(p.series("weir_requests_total"), p.series("weir_requests_rejected_total")...)
	want := []string{
		`weir_requests_total{code="ok",domain="(other)"} 0`,
		`weir_requests_total{code="ok",domain="shop"} 2`,
		`weir_requests_total{code="over_limit",domain="(other)"} 0`,
		`weir_requests_total{code="over_limit",domain="shop"} 8`,
		`weir_requests_rejected_total{code="Internal"} 1`,
		`weir_requests_rejected_total{code="ResourceExhausted"} 1`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// A request that waits for Redis is timed once; a renewal of a lease, for which nobody waits, is not.
func TestRenewalsAreNotTimed(t *testing.T) {
	server := redistest.Start(t)
	o := options(t, "domain: shop\ndescriptors: [{key: client, rate_limit: {algorithm: funnel, requests_per_unit: "+
		"100000, unit: second, "+
		"burst: 100000, consistency: leased}}]\n")
	o.Store = server.URL()
	p := start(t, o)
	requests := 0
	value := func(name string) int {
		t.Helper()
		lines := p.series(name + " ")
		if len(lines) == 0 {
			lines = p.series(name + `{store="(default)"}`)
		}
		if len(lines) != 1 {
			t.Fatalf("%s: %q", name, lines)
		}
		_, text, _ := strings.Cut(lines[0], " ")
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatal(err)
		}
		return int(n)
	}
	for deadline := time.Now().Add(patience); ; {
		for range 100 {
			p.ask("a")
			requests++
		}
		timed, leased := value("weir_store_take_seconds_count"), value("weir_lease_answers_total")
		if timed+leased != requests {
			t.Fatalf("%d requests, %d timed and %d decided by leases", requests, timed, leased)
		}
		if calls := value("weir_store_batch_requests_sum"); calls > timed {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("no lease was renewed in the background")
		}
	}
}
