package guard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// twoStores are two real Redis servers: --store, and one that limits call "daily".
type twoStores struct {
	t       *testing.T
	servers []*redistest.Server
	stores  map[string]*redisstore.Store
	group   *redisstore.Group
}

// names has the names of the two stores.
var names = []string{"", "daily"}

func openTwo(t *testing.T) *twoStores {
	t.Helper()
	two := &twoStores{t: t, stores: map[string]*redisstore.Store{}}
	for i, name := range names {
		two.servers = append(two.servers, redistest.Start(t))
		timeout := []time.Duration{10 * time.Second, 250 * time.Millisecond}[i] // only the second server hangs
		c := redistest.Client(t, two.servers[i].URL(), timeout)
		s, err := redisstore.New(c, redisstore.Options{Name: name, Timeout: timeout})
		if err != nil {
			t.Fatal(err)
		}
		two.stores[name] = s
	}
	two.group = redisstore.NewGroup(two.stores[""], map[string]*redisstore.Store{"daily": two.stores["daily"]})
	return two
}

// breaker runs a Breaker before the store of the two servers.
func (two *twoStores) breaker(store limiter.Store) breakerStore {
	servers := map[string]Server{}
	for name, s := range two.stores {
		servers[name] = s
	}
	b := breakerOf(store, BreakerOptions{
		Servers: servers, Answered: redisstore.Answered, Failures: redisstore.Failures,
	})
	ctx, cancel := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	wait.Go(func() { b.Run(ctx) })
	two.t.Cleanup(func() {
		cancel()
		wait.Wait()
	})
	return b
}

// leaseFor is the lease time in these tests.
const leaseFor = 50 * time.Millisecond

// placed is the route of a limit with a store and a lease time.
type placed struct {
	store string
	lease time.Duration
}

func (p placed) StoreName() string        { return p.store }
func (p placed) LeaseTime() time.Duration { return p.lease }

// yearly is a hit of a limit whose counter shows exactly how many hits are charged.
func yearly(t *testing.T, store string, lease time.Duration) limiter.Hit {
	t.Helper()
	p, err := limiter.NewPolicy(limiter.Params{
		Algorithm: limiter.FixedWindow, Limit: 10_000_000, Window: 365 * 24 * time.Hour, ChargeDenied: limiter.ChargeNone,
	})
	if err != nil {
		t.Fatal(err)
	}
	return limiter.Hit{Key: "k" + store, Policy: p, N: 1, Route: placed{store, lease}}
}

// A leased limit on a working store loses neither permits nor requests while another store hangs, even though leases on
// both stores are renewed at the same times, and requests use both.
func TestLeasesBesideHangingStore(t *testing.T) {
	two := openTwo(t)
	b := two.breaker(two.group)
	l := Lease(b)
	t.Cleanup(func() { _ = l.Close() }) // what the store that hangs has is lost
	hit := func(store string) limiter.Hit { return yearly(t, store, leaseFor) }
	healthy, hanging := hit(""), hit("daily")
	take := func(hits ...limiter.Hit) error { return l.Take(t.Context(), hits, make([]limiter.Decision, len(hits))) }
	waitFor(t, 30*time.Second, func() string { return errText(errors.Join(take(healthy), take(hanging))) })
	// charged returns the hits that the healthy counter has counted, without permits on lease.
	charged := func() int64 {
		peek := healthy
		peek.N, peek.Peek = 0, true
		out := make([]limiter.Decision, 1)
		waitFor(t, 30*time.Second, func() string { return errText(two.group.Take(t.Context(), []limiter.Hit{peek}, out)) })
		permits, _ := l.Permits(healthy.Key)
		return peek.Policy.Limit() - out[0].Remaining - permits
	}
	for range 200 {
		if err := errors.Join(take(healthy), take(hanging)); err != nil {
			t.Fatal(err)
		}
	}
	two.servers[1].Pause()
	defer two.servers[1].Resume()
	waitFor(t, 30*time.Second, func() string {
		if err := take(hanging, healthy); !errors.Is(err, ErrBreakerOpen) {
			return fmt.Sprintf("the store that hangs is asked: %v", err)
		}
		return ""
	})
	waitFor(t, 30*time.Second, func() string { return errText(take(healthy)) })
	<-time.After(2 * leaseFor) // calls that were under way have ended
	before, answers, admitted := charged(), l.Stats().Answers, int64(0)
	for i := range 2000 {
		if err := take(healthy); err != nil {
			t.Fatalf("a request on the store that answers: %v", err)
		}
		admitted++
		hanging.Key = fmt.Sprint("daily", i%8) // leases that are renewed at moments of their own
		if err := take(hanging, healthy); err == nil {
			t.Fatal("a request on the store that hangs is decided")
		}
		<-time.After(time.Millisecond / 2)
	}
	waitFor(t, 30*time.Second, func() string {
		if got := charged() - before; got != admitted {
			return fmt.Sprintf("%d charged and not on lease for %d requests admitted", got, admitted)
		}
		return ""
	})
	if n := l.Stats().Answers - answers; n < 1000 {
		t.Errorf("%d of 2000 requests were decided by leases, want most", n)
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
