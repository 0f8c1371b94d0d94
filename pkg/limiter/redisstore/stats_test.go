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

// one asks for a hit of each key, one request after the other.
func one(t *testing.T, s limiter.Store, p *limiter.Policy, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if err := s.Take(t.Context(), []limiter.Hit{{Key: key, Policy: p, N: 1}}, make([]limiter.Decision, 1)); err != nil {
			t.Fatal(err)
		}
	}
}

// Calls are counted by the requests that they carry, and those that had to bring the script; connections are there.
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
	want := redisstore.Stats{Requests: 3, Texts: 2}
	want.Batches[0] = 3
	got.Pool = want.Pool
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// Each batch counts once, in the bucket of its size.
func TestStatsBySize(t *testing.T) {
	for requests, bucket := range map[int]int{1: 0, 2: 1, 3: 2, 4: 2, 5: 3, 128: 7, 129: 8, 256: 8, 257: 9, 1000: 9} {
		var want [len(redisstore.BatchSizes) + 1]uint64
		want[bucket] = 1
		if got := redisstore.StatsOfBatch(requests); got.Batches != want || got.Requests != uint64(requests) {
			t.Errorf("a batch of %d: %+v, want one in bucket %d", requests, got, bucket)
		}
	}
}

// A group tells of each of its stores by name.
func TestEach(t *testing.T) {
	server := redistest.Start(t)
	first, second := open(t, server.URL(), redisstore.Options{}), open(t, server.URL(), redisstore.Options{})
	g := redisstore.NewGroup(first, map[string]*redisstore.Store{"second": second})
	one(t, g, funnel(t, 10, time.Hour), "a")
	for _, key := range []string{"b", "c"} {
		take(t, g, key, funnel(t, 10, time.Hour), 1, in("second"))
	}
	got := map[string]uint64{}
	g.Each(func(name string, s *redisstore.Store) { got[name] = s.Stats().Requests })
	if diff := cmp.Diff(map[string]uint64{"": 1, "second": 2}, got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// In a cluster each slot is a call, and connections are those to all nodes.
func clusterStats(t *testing.T, c *redistest.Cluster) {
	t.Helper()
	s, p := open(t, c.URL(), redisstore.Options{}), funnel(t, 10, time.Hour)
	for i := range 20 {
		one(t, s, p, fmt.Sprint("key", i))
	}
	got := s.Stats()
	if got.Batches[0] != 20 || got.Requests != 20 {
		t.Errorf("calls: %+v, want 20 of one request", got)
	}
	if got.Pool.TotalConns < 3 {
		t.Errorf("%d connections, want one to each of three masters", got.Pool.TotalConns)
	}
}
