package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/limitertest"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// scattered distributes hits over two stores, by the last byte of the key.
type scattered struct{ *redisstore.Group }

func (s scattered) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	moved := make([]limiter.Hit, len(hits))
	for i, h := range hits {
		if n := len(h.Key); n > 0 && h.Key[n-1]%2 == 1 && h.Policy != nil {
			h.Route = in("second")
		}
		moved[i] = h
	}
	return s.Group.Take(ctx, moved, out)
}

// in returns the route to a store of a group.
func in(store string) redisstore.Route { return redisstore.Route{Store: store} }

// failures returns the servers that an error names, as "STORE/SHARD silent" or "STORE/SHARD answered".
func failures(err error) string {
	var all []string
	redisstore.Failures(err, func(store, shard string, why error) {
		how := " silent"
		if redisstore.Answered(why) {
			how = " answered"
		}
		all = append(all, store+"/"+shard+how)
	})
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// An error of a request in several stores names each store that failed, and no other.
func TestFailures(t *testing.T) {
	servers := []*redistest.Server{redistest.Start(t), redistest.Start(t), redistest.Start(t)}
	var stores []*redisstore.Store
	for i, name := range []string{"", "b", "c"} {
		stores = append(stores, open(t, servers[i].URL(), redisstore.Options{Name: name, Timeout: 300 * time.Millisecond}))
	}
	g := redisstore.NewGroup(stores[0], map[string]*redisstore.Store{"b": stores[1], "c": stores[2]})
	p := funnel(t, 1000, time.Hour)
	hits := []limiter.Hit{
		{Key: "k", Policy: p, N: 1},
		{Key: "kb", Policy: p, N: 1, Route: in("b")},
		{Key: "kc", Policy: p, N: 1, Route: in("c")},
	}
	redistest.Await(t, func() error { return g.Take(t.Context(), hits, make([]limiter.Decision, 3)) })
	for _, fault := range []struct {
		do   func()
		want string
	}{
		{func() {}, ""},
		{servers[2].Pause, "c/ silent"},
		{servers[0].Pause, "/ silent, c/ silent"},
		{func() { redistest.Do(t, servers[1], "config", "set", "maxmemory", "1") }, "/ silent, b/ answered, c/ silent"},
		{servers[0].Resume, "b/ answered, c/ silent"},
	} {
		fault.do()
		redistest.Await(t, func() error {
			err := g.Take(t.Context(), hits, make([]limiter.Decision, 3))
			if got := failures(err); got != fault.want {
				return fmt.Errorf("it blames %q, want %q: %w", got, fault.want, err)
			}
			return nil
		})
	}
}

// A request waits as long as the longest timeout of its stores, in both steps.
func TestGroupWithADistantStore(t *testing.T) {
	t.Parallel()
	const timeout = 400 * time.Millisecond
	near := open(t, redistest.Start(t).URL(), redisstore.Options{Timeout: timeout})
	far := open(t, redistest.Start(t).URL(), redisstore.Options{Name: "home", Timeout: time.Minute})
	far.AddHook(redistest.Hook(func(_ []redis.Cmder, send func() error) error {
		time.Sleep(2 * timeout) // the distance
		return send()
	}))
	g := redisstore.NewGroup(near, map[string]*redisstore.Store{"home": far})
	p, out := funnel(t, 1000, 1000*time.Hour), make([]limiter.Decision, 2)
	flight, err := limiter.NewPolicy(limiter.Params{Algorithm: limiter.Concurrency, Limit: 1000, Window: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	hits := func(n int64) []limiter.Hit {
		return []limiter.Hit{{Key: "k", Policy: p, N: 1}, {Key: "f", Policy: flight, N: n, Route: in("home")}}
	}
	if err := g.Take(t.Context(), hits(1), out); err != nil {
		t.Fatal(err)
	}
	left := out[0].Remaining
	if err := g.Take(t.Context(), hits(1001), out); err != nil || out[1].Allowed || out[0].Remaining != left {
		t.Errorf("a denied request: %+v, %v; want %d remaining in the near store", out, err, left)
	}
}

// TestGroup checks that a request in two stores is decided like a request in one store.
func TestGroup(t *testing.T) {
	t.Parallel()
	first, second := redistest.Start(t), redistest.Start(t)
	n := 0
	group := func(t *testing.T, o redisstore.Options) *redisstore.Group {
		t.Helper()
		n++
		o.KeyPrefix = fmt.Sprintf("t%d:", n)
		a := open(t, first.URL(), o)
		o.Name = "second"
		return redisstore.NewGroup(a, map[string]*redisstore.Store{"second": open(t, second.URL(), o)})
	}
	fresh := func(t *testing.T, clock *limitertest.Clock) limiter.Store {
		t.Helper()
		return scattered{group(t, redisstore.Options{Now: clock.Now})}
	}
	t.Run("contract", func(t *testing.T) { limitertest.Run(t, fresh) })
	t.Run("scripts agree with Go", func(t *testing.T) {
		limitertest.HistoriesInTwoSteps(t, fresh,
			casetest.Pick(25, 300))
	})
	t.Run("each limit in its own", func(t *testing.T) {
		g, p := group(t, redisstore.Options{}), funnel(t, 10, time.Hour)
		hits := []limiter.Hit{{Key: "a", Policy: p, N: 1}, {Key: "b", Policy: p, N: 1, Route: in("second")}}
		if err := g.Take(t.Context(), hits, make([]limiter.Decision, 2)); err != nil {
			t.Fatal(err)
		}
		for key, server := range map[string]*redistest.Server{"a": first, "b": second} {
			if got := redistest.Do(t, server, "keys", fmt.Sprintf("t%d:*", n)); fmt.Sprint(got) != fmt.Sprintf("[t%d:1:%s]", n,
				key) {
				t.Errorf("a server has %v, want the counter %s", got, key)
			}
		}
		err := g.Take(t.Context(), []limiter.Hit{{Key: "a", Policy: p, N: 1, Route: in("third")}},
			make([]limiter.Decision, 1))
		if !errors.Is(err, limiter.ErrUnavailable) || !strings.Contains(err.Error(), `there is no store "third"`) {
			t.Errorf("%v, want an ErrUnavailable", err)
		}
	})
}
