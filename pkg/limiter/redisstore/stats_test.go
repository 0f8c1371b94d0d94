package redisstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// one takes a hit of each key, one request after the other.
func one(t *testing.T, s limiter.Store, p *limiter.Policy, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if err := s.Take(t.Context(), []limiter.Hit{{Key: key, Policy: p, N: 1}}, make([]limiter.Decision, 1)); err != nil {
			t.Fatal(err)
		}
	}
}

// Stats count calls, their requests, and the calls with the script's text, and have statistics of connections.
func TestStats(t *testing.T) {
	server := redistest.Start(t)
	s, p := open(t, server.URL(), redisstore.Options{}), funnel(t, 10, time.Hour)
	one(t, s, p, "a", "b")
	redistest.Do(t, server, "script", "flush")
	one(t, s, p, "c")

	got := s.Stats()
	if p := got.Pool; p.TotalConns < 1 || p.IdleConns != p.TotalConns || p.Misses < 1 || p.Hits < 1 {
		t.Errorf("connections: %+v, want idle ones that were made once and found again", got)
	}
	want := redisstore.Stats{Calls: 3, Requests: 3, Texts: 2}
	got.Pool = want.Pool
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// In a cluster each slot needs a call, and Stats have the connections to all nodes.
func clusterStats(t *testing.T, c *redistest.Cluster) {
	t.Helper()
	s, p := open(t, c.URL(), redisstore.Options{}), funnel(t, 10, time.Hour)
	for i := range 20 {
		one(t, s, p, fmt.Sprint("key", i))
	}
	got := s.Stats()
	if got.Calls != 20 || got.Requests != 20 {
		t.Errorf("calls: %+v, want 20 of one request", got)
	}
	if got.Pool.TotalConns < 3 {
		t.Errorf("%d connections, want one to each of three masters", got.Pool.TotalConns)
	}
}
