package main

import (
	"context"
	"io"
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
		settings: settings{
			Rounds: 2, Duration: 50 * time.Millisecond, WarmUp: time.Millisecond, Concurrency: 4, Connections: 1,
			Algorithm: "none",
		},
	}
	targets := []*target{newTarget(nameNoop, serve(t, service), true)}
	rows, err := o.throughEnvoy(t.Context(), t.TempDir(), targets, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	table := o.envoyTables(rows)
	for _, want := range []string{"\n4 outstanding:\n", "\n1 outstanding:\n", "\n| none | ", "\n| noop | "} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
	if len(rows) != 4 {
		t.Fatalf("%d rows, want 2 fronts with 4 outstanding and with 1", len(rows))
	}
	for i, row := range rows {
		for _, s := range row.rounds {
			if s.ReqPerSec <= 0 || s.P50 <= 0 || s.P50 > s.P99 || s.Envoy <= 0 || s.RSS < 10 || s.RSS > 1000 {
				t.Errorf("%s: %+v", row.front.name, s)
			}
			if (s.Server > 0) != (i%2 == 1) {
				t.Errorf("%s: the service took %g us for each request", row.front.name, s.Server)
			}
		}
	}
	if service.asked.Load() == 0 {
		t.Error("the service was not asked")
	}
}
