package guard_test

import (
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// TestGreedGivesWay on a real Redis: ten processes' leases, each with connections of its own.
func TestGreedGivesWayOnRedis(t *testing.T) {
	const replicas, lease = 10, time.Second // long: a busy machine is late
	server := redistest.Start(t)
	p := leased(t, limiter.Params{Algorithm: limiter.SlidingLog, Limit: 1000, Window: time.Hour})
	var fleet []guard.LeasesStore
	for range replicas {
		const timeout = 10 * time.Second
		store, err := redisstore.New(redistest.Client(t, server.URL(), timeout), redisstore.Options{Timeout: timeout})
		if err != nil {
			t.Fatal(err)
		}
		fleet = append(fleet, newLeases(t, store))
	}
	greedy := fleet[0]
	for i := 0; i < 500 && greedy.Stats().Permits < 95; i++ {
		take(t, greedy, limiter.Hit{Key: "k", Policy: p, Route: leaseRoute(lease), N: 1})
	}
	held := greedy.Stats().Permits
	left := take(t, fleet[1], limiter.Hit{Key: "k", Policy: p, Route: leaseRoute(lease), Look: true})[0].Remaining
	take(t, fleet[1], limiter.Hit{Key: "k", Policy: p, Route: leaseRoute(lease), N: left - 9})
	if held < 95 {
		t.Fatalf("the greedy replica has %d on lease: too few to tell", held)
	}
	start := time.Now()
	asked := 0
	for ; !take(t, fleet[1+asked%(replicas-1)], limiter.Hit{
		Key: "k", Policy: p, Route: leaseRoute(lease),
		N: 10,
	})[0].Allowed; asked++ {
		time.Sleep(5 * time.Millisecond)
		if took := time.Since(start); took > lease*3/2 { // from 13/8 on it is the second time that it releases
			t.Fatalf("the others got nothing for %s, while a greedy replica had %d permits of %s", took, held, lease)
		}
	}
	if t.Logf("admitted after %s, %d requests", time.Since(start), asked); asked == 0 {
		t.Error("nobody was denied: nothing is told")
	}
}
