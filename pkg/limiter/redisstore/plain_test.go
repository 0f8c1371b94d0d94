package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/test/longtest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/limitertest"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// plainRights are what docs/operate/redis.md says that a user needs without scripts.
const plainRights = "~weir:* +incrby +pexpire +get"

// openPlain makes a store without scripts.
func openPlain(tb testing.TB, url string, o redisstore.Options) *redisstore.Store {
	tb.Helper()
	o.NoScripts = true
	return open(tb, url, o)
}

// fixed is a policy of fixed windows.
func fixed(tb testing.TB, in limiter.Params) *limiter.Policy {
	tb.Helper()
	in.Algorithm = limiter.FixedWindow
	p, err := limiter.NewPolicy(in)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// minutely is a policy of limit hits a minute.
func minutely(tb testing.TB, limit int64) *limiter.Policy {
	tb.Helper()
	return fixed(tb, limiter.Params{Limit: limit, Window: time.Minute})
}

// plainPolicies are kinds of limits that a store without scripts decides. Their windows are so long that no key expires
// while a test runs on a virtual clock.
func plainPolicies(tb testing.TB) (all []*limiter.Policy) {
	tb.Helper()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		tb.Fatal(err)
	}
	for _, in := range []limiter.Params{
		{Limit: 5, Window: time.Minute},
		{Limit: 20, Window: 90500 * time.Millisecond},
		{Limit: 7, Window: time.Hour, LookAtLimit: true},
		{Limit: 3, Window: 24 * time.Hour, Align: limiter.AlignCalendar, TimeZone: berlin},
		{Limit: 9, Window: 30 * 24 * time.Hour, Align: limiter.AlignCalendar},
		{Limit: limiter.MaxHits, Window: time.Hour},
		{Limit: 0, Window: time.Minute},
		{Limit: 0, Window: time.Minute, LookAtLimit: true},
	} {
		all = append(all, fixed(tb, in))
	}
	return all
}

// A store without scripts decides as limiter.Decide does where each hit is charged by itself.
func TestPlainAgreesWithTheSteps(t *testing.T) {
	server := redistest.Start(t)
	clock := limitertest.NewClock()
	s := openPlain(t, server.URL(), redisstore.Options{Now: clock.Now})
	policies := plainPolicies(t)
	rng := rand.New(rand.NewPCG(17, 7))
	states := map[string]limiter.State{}
	for step := range longtest.Pick(3000, 60_000) {
		if rng.IntN(20) == 0 {
			clock.Advance(time.Duration(rng.Int64N(int64(40 * time.Minute))))
		} else {
			clock.Advance(time.Duration(rng.Int64N(int64(time.Second))))
		}
		hits := make([]limiter.Hit, 1+rng.IntN(4))
		slots := make([]limiter.Slot, len(hits))
		for i := range hits {
			which := rng.IntN(len(policies))
			n := []int64{1, 1, 1, 2, 3, 0, -1, -4, 1 + rng.Int64N(30), limiter.MaxHits}[rng.IntN(10)]
			hits[i] = limiter.Hit{
				Key: fmt.Sprintf("%d/%d", which, rng.IntN(2)), Policy: policies[which], N: n, Look: n == 0,
				Mode: []limiter.Mode{limiter.Enforce, limiter.Shadow, limiter.Quota}[rng.IntN(3)], Group: i,
			}
		}
		got, want := make([]limiter.Decision, len(hits)), make([]limiter.Decision, len(hits))
		if err := s.Take(t.Context(), hits, got); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		hits[0].ByItself = true
		for i := range hits {
			slots[i].State = states[hits[i].Key]
		}
		limiter.Decide(clock.Now(), hits, slots, want)
		for i := range hits {
			if slots[i].Changed {
				states[hits[i].Key] = slots[i].Next
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("step %d: %+v\n-want +got\n%s", step, hits, diff)
		}
	}
}

// Whatever comes at the same time by however many stores: what is admitted in a window, less what was given back, is
// never more than the limit.
func TestPlainNeverAdmitsMore(t *testing.T) {
	server := redistest.Start(t)
	const limit, processes, workers = 200, 3, 4
	for _, givesBack := range []bool{false, true} {
		t.Run(fmt.Sprintf("gives back %t", givesBack), func(t *testing.T) {
			p := fixed(t, limiter.Params{Limit: limit, Window: 24 * time.Hour})
			key := "most" + strconv.FormatBool(givesBack)
			var admitted, most atomic.Int64
			var wait sync.WaitGroup
			for i := range processes {
				s := openPlain(t, server.URL(), redisstore.Options{})
				for w := range workers {
					wait.Go(func() {
						rng := rand.New(rand.NewPCG(uint64(i), uint64(w)))
						for range 100 {
							n := 1 + rng.Int64N(5)
							if !limitOne(t, s, key, p, n) {
								continue
							}
							if now := admitted.Add(n); now > most.Load() {
								most.Store(now)
							}
							if givesBack && rng.IntN(2) == 0 {
								admitted.Add(-n) // before it is done: others may have it right then
								limitOne(t, s, key, p, -n)
							}
						}
					})
				}
			}
			wait.Wait()
			if most.Load() > limit || !givesBack && admitted.Load() < limit-5 {
				t.Errorf("%d hits were admitted, %d at most, want up to %d", admitted.Load(), most.Load(), limit)
			}
		})
	}
}

// limitOne takes a hit and reports whether it fits.
func limitOne(tb testing.TB, s limiter.Store, key string, p *limiter.Policy, n int64) bool {
	tb.Helper()
	var out [1]limiter.Decision
	if err := s.Take(tb.Context(), []limiter.Hit{{Key: key, Policy: p, N: n, Look: n == 0}}, out[:]); err != nil {
		tb.Error(err)
	}
	return out[0].Allowed
}

// Giving back more than there is, at the same time by many, leaves no credit behind.
func TestPlainGivesNoCredit(t *testing.T) {
	server := redistest.Start(t)
	s, direct := openPlain(t, server.URL(), redisstore.Options{}), client(t, server)
	p := fixed(t, limiter.Params{Limit: 10, Window: 24 * time.Hour})
	for round := range 20 {
		key := fmt.Sprint("credit", round)
		limitOne(t, s, key, p, 3)
		var wait sync.WaitGroup
		for range 8 {
			wait.Go(func() { limitOne(t, s, key, p, -2) })
		}
		wait.Wait()
		name := "weir:1:" + s.WindowKey(&limiter.Hit{Key: key, Policy: p})
		if n, err := direct.Get(t.Context(), name).Int64(); err != nil || n != 0 {
			t.Fatalf("%s holds %d, %v; want 0", name, n, err)
		}
	}
}

// The key names the window, and lives a little longer than that.
func TestPlainKeys(t *testing.T) {
	server := redistest.Start(t)
	const now = 1_785_024_030_250_000
	s := openPlain(t, server.URL(), redisstore.Options{Now: func() int64 { return now }})
	direct := client(t, server)
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		in    limiter.Params
		name  string
		lives time.Duration
	}{
		{limiter.Params{Window: time.Minute}, "k|@1785024000+60", 29750*time.Millisecond + 10*time.Second},
		{limiter.Params{Window: time.Second}, "k|@1785024030+1", 750*time.Millisecond + time.Second},
		{limiter.Params{Window: 1500 * time.Millisecond}, "k|@1785024030+1.5", 1250*time.Millisecond + 1500*time.Millisecond},
		{limiter.Params{Window: 100 * time.Millisecond}, "k|@1785024030.2+0.1", 50*time.Millisecond + 100*time.Millisecond},
		{
			limiter.Params{Window: 24 * time.Hour, Align: limiter.AlignCalendar, TimeZone: berlin},
			"k|@1785016800+86400", 86400*time.Second - 7230250*time.Millisecond + 10*time.Second,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.in.Limit = 10
			h := limiter.Hit{Key: "k", Policy: fixed(t, c.in), N: 4}
			before := time.Now()
			if !limitOne(t, s, h.Key, h.Policy, h.N) {
				t.Fatal("the first hits are denied")
			}
			if name := s.WindowKey(&h); name != c.name {
				t.Errorf("WindowKey is %s", name)
			}
			left, err := direct.PTTL(t.Context(), "weir:1:"+c.name).Result()
			took := time.Since(before)
			if least := c.lives - took; err != nil || left > c.lives+2*time.Millisecond || left < least {
				t.Errorf("it lives for %s, %v; want %s", left, err, c.lives)
			}
			if key, ok := s.KeyOf("weir:1:" + c.name); !ok || key != c.name {
				t.Errorf("KeyOf is %s, %t", key, ok)
			}
		})
	}
}

func TestPlainReset(t *testing.T) {
	server := redistest.Start(t)
	s, p := openPlain(t, server.URL(), redisstore.Options{}), fixed(t, limiter.Params{Limit: 2, Window: 24 * time.Hour})
	limitOne(t, s, "k", p, 2)
	if limitOne(t, s, "k", p, 1) {
		t.Error("the third hit is allowed")
	}
	name := s.WindowKey(&limiter.Hit{Key: "k", Policy: p})
	for _, want := range []bool{true, false} {
		if existed, err := s.Reset(t.Context(), name); existed != want || err != nil {
			t.Errorf("Reset: %t, %v; want %t", existed, err, want)
		}
	}
	if !limitOne(t, s, "k", p, 2) {
		t.Error("after a reset two hits are denied")
	}
	_, err := s.Reset(t.Context(), "k")
	if err == nil || !strings.Contains(err.Error(), `each window has a counter of its own: name the one to reset`) {
		t.Errorf("reset of no window: %v", err)
	}
}

// What needs scripts is refused, and nothing is charged.
func TestPlainRefuses(t *testing.T) {
	server := redistest.Start(t)
	s := openPlain(t, server.URL(), redisstore.Options{})
	good := minutely(t, 5)
	for _, in := range []limiter.Params{
		{Algorithm: limiter.SlidingWindow, Limit: 5, Window: time.Minute},
		{Algorithm: limiter.Concurrency, Limit: 5, Window: time.Minute},
		{Algorithm: limiter.FixedWindow, Limit: 5, Window: time.Minute, Align: limiter.AlignFirstHit},
		{Algorithm: limiter.FixedWindow, Limit: 5, Window: time.Minute, ChargeDenied: limiter.ChargeNone},
		{Algorithm: limiter.FixedWindow, Limit: 5, Window: time.Minute, ChargeDenied: limiter.ChargeRemaining},
	} {
		p, err := limiter.NewPolicy(in)
		if err != nil {
			t.Fatal(err)
		}
		hits := []limiter.Hit{{Key: "good", Policy: good, N: 1}, {Key: "bad", Policy: p, N: 1}}
		for name, store := range map[string]limiter.Store{"store": s, "group": redisstore.NewGroup(s, nil)} {
			err = store.Take(t.Context(), hits, make([]limiter.Decision, 2))
			if !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), "hits[") ||
				!strings.Contains(err.Error(), "a store without scripts decides fixed windows") {
				t.Errorf("%s, %+v: %v", name, in, err)
			}
		}
	}
	if n := client(t, server).DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("there are %d keys", n)
	}
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr()}})
	defer func() { _ = cluster.Close() }()
	if _, err := redisstore.New(cluster, redisstore.Options{NoScripts: true}); err == nil {
		t.Error("a store without scripts is made of a cluster")
	}
}

// The few rights that the book names are enough for all that a store without scripts does.
func TestPlainRights(t *testing.T) {
	server := redistest.Start(t, strings.Fields("--user default off --user weir on >secret "+plainRights)...)
	s := openPlain(t, "redis://weir:secret@"+server.Addr()+"/0", redisstore.Options{})
	p := minutely(t, 5)
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	for _, n := range []int64{3, 0, -1, 3} {
		if !limitOne(t, s, "k", p, n) {
			t.Errorf("%d hits are denied", n)
		}
	}
	if existed, err := s.Reset(t.Context(), s.WindowKey(&limiter.Hit{Key: "k", Policy: p})); !existed || err != nil {
		t.Errorf("Reset: %t, %v", existed, err)
	}
	for _, right := range []string{"incrby", "pexpire", "get"} {
		server.SetArgs(strings.Fields("--user default off --user weir on >secret " +
			strings.Replace(plainRights, "+"+right, "", 1))...)
		server.Restart()
		without := openPlain(t, "redis://weir:secret@"+server.Addr()+"/0", redisstore.Options{})
		if err := without.Ping(t.Context()); !redisstore.Answered(err) || !strings.Contains(err.Error(), "'"+right+"'") {
			t.Errorf("without %s: Ping: %v", right, err)
		}
	}
}

// A command that fails is its request's alone.
func TestPlainErrors(t *testing.T) {
	server := redistest.Start(t)
	s, direct := openPlain(t, server.URL(), redisstore.Options{}), client(t, server)
	p := fixed(t, limiter.Params{Limit: 5, Window: 24 * time.Hour})
	plant := func(key string, value any) {
		t.Helper()
		name := "weir:1:" + s.WindowKey(&limiter.Hit{Key: key, Policy: p})
		if err := direct.Set(t.Context(), name, value, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	plant("text", "no number")
	plant("huge", "9223372036854775807")
	plant("negative", "-7")
	for _, n := range []int64{1, 0, -1} {
		err := s.Take(t.Context(), []limiter.Hit{{Key: "text", Policy: p, N: n, Look: n == 0}}, make([]limiter.Decision, 1))
		if !errors.Is(err, limiter.ErrUnavailable) || !redisstore.Answered(err) {
			t.Errorf("cost %d on text: %v", n, err)
		}
	}
	if limitOne(t, s, "huge", p, 1) {
		t.Error("a counter that cannot count further allows a hit")
	}
	if limitOne(t, s, "negative", p, 6) {
		t.Error("a counter below 0 allows more than the limit")
	}
	if ttl := direct.PTTL(t.Context(), "weir:1:"+s.WindowKey(&limiter.Hit{Key: "text", Policy: p})).Val(); ttl <= 0 {
		t.Errorf("what is no counter stays: %s", ttl)
	}
}

// A server that hangs costs a request no more than its time.
func TestPlainHangingServer(t *testing.T) {
	server := redistest.Start(t)
	s := openPlain(t, server.URL(), redisstore.Options{Timeout: 50 * time.Millisecond})
	p := minutely(t, 1000)
	server.Pause()
	defer server.Resume()
	err := s.Take(t.Context(), []limiter.Hit{{Key: "k", Policy: p, N: 1}}, make([]limiter.Decision, 1))
	if !errors.Is(err, limiter.ErrUnavailable) || !redisstore.TimedOut(err) || redisstore.Answered(err) {
		t.Errorf("Take: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Take(ctx, []limiter.Hit{{Key: "k", Policy: p, N: 1}}, make([]limiter.Decision, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("Take of one who left: %v", err)
	}
}

// In a request over a store with and one without scripts each hit is charged by itself.
func TestPlainBesideScripts(t *testing.T) {
	first, second := redistest.Start(t), redistest.Start(t)
	g := redisstore.NewGroup(open(t, first.URL(), redisstore.Options{}), map[string]*redisstore.Store{
		"plain": openPlain(t, second.URL(), redisstore.Options{Name: "plain"}),
	})
	p := fixed(t, limiter.Params{Limit: 3, Window: 24 * time.Hour})
	hits := []limiter.Hit{
		{Key: "a", Policy: p, N: 1},
		{Key: "b", Policy: fixed(t, limiter.Params{Limit: 1, Window: 24 * time.Hour}), N: 1, Route: redisstore.Route{Store: "plain"}},
	}
	var left []int64
	for range 3 {
		out := make([]limiter.Decision, 2)
		if err := g.Take(t.Context(), hits, out); err != nil {
			t.Fatal(err)
		}
		left = append(left, out[0].Remaining, out[1].Remaining)
	}
	if want := []int64{2, 0, 1, 0, 0, 0}; !slices.Equal(left, want) {
		t.Errorf("what remains is %v, want %v", left, want)
	}
	if hits[0].ByItself {
		t.Error("Take has changed the hits")
	}
	if name := g.WindowKey(&hits[0]); name != "a" {
		t.Errorf("the counter with scripts is called %s", name)
	}
	for i := range hits {
		if existed, err := g.Reset(t.Context(), g.WindowKey(&hits[i])); !existed || err != nil {
			t.Errorf("Reset of hits[%d]: %t, %v", i, existed, err)
		}
	}
	if err := g.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}
