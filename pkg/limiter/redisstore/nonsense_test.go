package redisstore_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/limitertest"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// nonsense lists states that no step of Weir writes.
var nonsense = []string{
	"somebody's", "1e300", strings.Repeat("9 ", 40_000), strings.Repeat("x", 1<<20), packedDoubles(math.NaN()),
	packedDoubles(math.Inf(1)), packedDoubles(1e300), packedDoubles(-1),
}

func packedDoubles(numbers ...float64) string {
	var packed []byte
	for _, v := range numbers {
		packed = binary.BigEndian.AppendUint64(packed, math.Float64bits(v))
	}
	return string(packed)
}

// everyStep returns policies for each step, and for each variant of a step.
func everyStep(t *testing.T) (all []*limiter.Policy) {
	t.Helper()
	for _, in := range []limiter.Params{
		{Algorithm: limiter.FixedWindow},
		{Algorithm: limiter.FixedWindow, Align: limiter.AlignFirstHit},
		{Algorithm: limiter.FixedWindow, Align: limiter.AlignCalendar, Window: time.Hour},
		{Algorithm: limiter.Funnel},
		{Algorithm: limiter.Funnel, Limit: 7},
		{Algorithm: limiter.TokenBucket, StartsEmpty: true},
		{Algorithm: limiter.TokenBucket, RefillsAtOnce: true},
		{Algorithm: limiter.TokenBucket, RefillsAtOnce: true, StartsEmpty: true},
		{Algorithm: limiter.SlidingWindow},
		{Algorithm: limiter.SlidingWindow, Oldest: limiter.OldestFull},
		{Algorithm: limiter.SlidingLog},
		{Algorithm: limiter.Concurrency},
		{Algorithm: limiter.SmoothBursty, MaxWait: time.Second},
		{Algorithm: limiter.LeakyQueue},
		{Algorithm: limiter.SmoothWarmingUp, MaxWait: time.Second},
	} {
		if in.Limit == 0 {
			in.Limit = 10
		}
		if in.Window == 0 {
			in.Window = 10 * time.Second
		}
		for in.ChargeDenied = limiter.ChargeNone; in.ChargeDenied <= limiter.ChargeFull; in.ChargeDenied++ {
			all = append(all, policy(t, in))
		}
	}
	return all
}

// TestNonsenseStartsAgain checks that a state that Weir cannot have written counts as no state. The counter starts
// again, and its key has a time to live.
func TestNonsenseStartsAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c, clock := client(t, server), limitertest.NewClock()
	s := open(t, server.SocketURL(), redisstore.Options{Now: clock.Now})
	startsAgain := func(t *testing.T, p *limiter.Policy, state, key string) {
		t.Helper()
		before := s.Stats().Restarted
		for _, n := range []int64{1, 0, 11, -1} {
			if err := c.Set(t.Context(), "weir:1:"+key, state, 0).Err(); err != nil {
				t.Fatal(err)
			}
			next, want := storekit.Step(p, storekit.State{}, clock.Now(), n)
			if got := take(t, s, key, p, n); got != want {
				t.Errorf("%s/%.60q, cost %d: %+v, want %+v", p.Algorithm(), state, n, got, want)
			}
			got := take(t, s, key, p, 1)
			if _, want = storekit.Step(p, next, clock.Now(), 1); got != want {
				t.Errorf("%s/%.60q, a second hit after %d: %+v, want %+v", p.Algorithm(), state, n, got, want)
			}
			if ttl := c.PTTL(t.Context(), "weir:1:"+key).Val(); ttl == -1 {
				t.Errorf("%s/%.60q: the key stays for ever", p.Algorithm(), state)
			}
		}
		if s.Stats().Restarted == before {
			t.Errorf("%s/%.60q: is not counted", p.Algorithm(), state)
		}
	}
	for i, p := range everyStep(t) {
		for j, state := range nonsense {
			startsAgain(t, p, state, fmt.Sprint(i, " ", j))
		}
	}
}

// TestReleaseOnNonsense checks that a release, or taking back a charge, does not fail if the counter has a state that
// Weir cannot have written.
func TestReleaseOnNonsense(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c, clock := client(t, server), limitertest.NewClock()
	s := open(t, server.SocketURL(), redisstore.Options{Now: clock.Now})
	for a := limiter.FixedWindow; a <= limiter.Concurrency; a++ {
		in := limiter.Params{Algorithm: a, Limit: 10, Window: time.Minute}
		if a.Kind().Is(step.Prepayable) {
			in.Reserve = 5
		} else if !a.CountsInFlight() {
			continue
		}
		p := policy(t, in)
		for _, state := range nonsense {
			if err := c.Set(t.Context(), "weir:1:a", state, 0).Err(); err != nil {
				t.Fatal(err)
			}
			release := []limiter.Hit{{Key: "a", Policy: p, N: -1, TakenAt: clock.Now() + 1_234_567}}
			out := make([]limiter.Decision, 1)
			if err := s.Take(t.Context(), release, out); err != nil || out[0].Remaining != 10 {
				t.Errorf("%s, %.60q: %+v, %v; want 10 remaining", a, state, out[0], err)
			}
		}
	}
}

// TestFarStatesAreCut checks that a state that is further ahead than its policy allows counts as full, or as at the
// time when it was written, and that Stats count it.
func TestFarStatesAreCut(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c, clock := client(t, server), limitertest.NewClock()
	s := open(t, server.SocketURL(), redisstore.Options{Now: clock.Now})
	now := float64(clock.Now())
	far := float64(clock.Now() + 2*365*24*time.Hour.Microseconds()) // two years ahead
	hourly := policy(t, limiter.Params{Algorithm: limiter.FixedWindow, Limit: 10, Window: time.Hour})
	for i, far := range []struct {
		p     *limiter.Policy
		state string
		left  int64
	}{
		{hourly, packedDoubles(far, 3, far+1), 7},
		{funnel(t, 10, time.Hour), packedDoubles(far, 0), 10},            // it was empty when it was written
		{funnel(t, 10, time.Hour), packedDoubles(far, 18*60*1e6), 7},     // 18 of 60 minutes
		{funnel(t, 10, time.Hour), packedDoubles(now+36e8*5, 36e8*5), 0}, // five hours, by a rule of another rate
	} {
		key := fmt.Sprint("far ", i)
		if err := c.Set(t.Context(), "weir:1:"+key, far.state, 0).Err(); err != nil {
			t.Fatal(err)
		}
		if d := take(t, s, key, far.p, 0); d.Remaining != far.left || d.RetryAfter > time.Hour {
			t.Errorf("%s: %+v, want %d left of 10 an hour", key, d, far.left)
		}
		clock.Advance(6 * time.Minute)
		if d := take(t, s, key, far.p, 1); !d.Allowed {
			t.Errorf("%s, six minutes later: %+v", key, d)
		}
		if ttl := c.PTTL(t.Context(), "weir:1:"+key).Val(); ttl <= 0 || ttl > 26*time.Hour { // Now is no clock of Redis
			t.Errorf("%s: the key ends in %s", key, ttl)
		}
		if got := s.Stats(); got.Cut < uint64(i+1) || got.Restarted != 0 {
			t.Errorf("%s: %d were cut, %d restarted", key, got.Cut, got.Restarted)
		}
		clock.Advance(-6 * time.Minute)
	}
}

// An impossible state does not affect other requests of the batch.
func TestNonsenseBesideOthers(t *testing.T) {
	server := redistest.Start(t)
	s, ten := open(t, server.SocketURL(), redisstore.Options{}), funnel(t, 10, time.Hour)
	redistest.Do(t, server, "set", "weir:1:odd", "somebody's")
	hits := []limiter.Hit{{Key: "a", Policy: ten, N: 1}, {Key: "odd", Policy: ten, N: 1}, {Key: "b", Policy: ten, N: 1}}
	out := make([]limiter.Decision, len(hits))
	if err := s.Take(t.Context(), hits, out); err != nil {
		t.Fatal(err)
	}
	for i, d := range out {
		if !d.Allowed || d.Remaining != 9 {
			t.Errorf("%s: %+v, want 9 remaining", hits[i].Key, d)
		}
	}
}
