package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

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
	if testing.Short() {
		t.Skip("needs an Envoy")
	}
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
