package redisstore_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/limitertest"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// hitsNow is how a log ends whose newest hit was just now: 99 hits were counted.
var hitsNow = packedDoubles(99)

// nonsense are states that no step of Weir leaves.
func nonsense(now int64) []string {
	segment := float64(now / 1_000_000)
	all := []string{
		"somebody's", "", " ", "1e300", "nan", "7 7 7 7 7 7 7", "\x00", "{}", "18446744073709551616",
		strconv.FormatInt(now, 10), fmt.Sprint(now, " 1"), strings.Repeat("9", 400), strings.Repeat("9 ", 40_000),
		strings.Repeat("x", 1<<20), strings.Repeat("\x00", 1<<20),
		// A sliding window's, with counts of 4 bytes, of 8, or of other lengths.
		packedDoubles(segment, 1_000_000, 0) + "\x00\x00\x05",
		packedDoubles(segment, 0, 0) + "\x00\x00\x00\x05",
		packedDoubles(far(now)/1_000_000, 1_000_000, 0) + "\x00\x00\x00\x05",
		packedDoubles(segment, 1_000_000, math.NaN()) + "\x00\x00\x00\x05",
		packedDoubles(segment, 1_000_000, 0) + "\x00" + packedDoubles(math.NaN()),
		packedDoubles(segment, 1_000_000, 0) + "\x00" + packedDoubles(-5),
		packedDoubles(segment, 1_000_000, 0) + "\x00" + packedDoubles(1e300, 1),
	}
	for _, numbers := range [][]float64{
		{math.NaN()},
		{math.Inf(1)},
		{1e300},
		{-1},
		{0, math.NaN(), 1},
		{0, math.Inf(1), 1},
		{0, 1e300, 1},
		{0, far(now), 1},
		{0, float64(now), math.NaN()},
		{0, float64(now), math.Inf(1)},
		{0, float64(now), 1e300},
		{5, float64(now), 1},
		{0, float64(now), 0.5},
		{0, math.NaN(), 1, float64(now), 99},
		{0, 1.5, 1, float64(now), 99},
		{0, far(now), 1, float64(now), 99},
		{0, float64(now), 1, 5, 99},
		{0, float64(now) - 1.5, 1, float64(now), 99},
		// Windows, batches of tokens, and funnels.
		{far(now), 1},
		{far(now), 1e300},
		{float64(now), -7},
		{float64(now), 0.5},
		{float64(now), 1e300},
		{float64(now), math.NaN()},
		{float64(now), math.Inf(1)},
		{-5, 0},
		{far(now), 1, far(now) + 1},
		{float64(now), -7, float64(now)},
		{float64(now), 1.5, float64(now)},
		{float64(now), 1e300, float64(now)},
		{float64(now), 1, math.NaN()},
		{float64(now), 1, math.Inf(-1)},
		{float64(now) + 0.5, 1, 1},
		// What is in store behind a funnel.
		{0, 1, far(now), 0},
		{0, 1, far(now), 0, 1},
		{-1, 1, float64(now), 0},
		{0, math.NaN(), float64(now), 0},
		{math.Inf(1), 1, float64(now), 0, 1},
		{0, 1, float64(now), 0, 0.5},
		{0, 1e300, float64(now), 0, 1},
	} {
		all = append(all, packedDoubles(numbers...))
	}
	return all
}

// far is two years ahead.
func far(now int64) float64 { return float64(now + 2*365*24*time.Hour.Microseconds()) }

func packedDoubles(numbers ...float64) string {
	var packed []byte
	for _, v := range numbers {
		packed = binary.BigEndian.AppendUint64(packed, math.Float64bits(v))
	}
	return string(packed)
}

// everyStep has a policy for each step, and for each of its ways.
func everyStep(t *testing.T) (all []*limiter.Policy) {
	t.Helper()
	for _, in := range []limiter.Params{
		{Algorithm: limiter.FixedWindow},
		{Algorithm: limiter.FixedWindow, Align: limiter.AlignFirstHit},
		{Algorithm: limiter.FixedWindow, Align: limiter.AlignCalendar, Window: time.Hour},
		{Algorithm: limiter.Funnel},
		{Algorithm: limiter.Funnel, Limit: 7},
		{Algorithm: limiter.TokenBucket, Initial: limiter.InitialEmpty},
		{Algorithm: limiter.TokenBucket, Refill: limiter.RefillInterval},
		{Algorithm: limiter.TokenBucket, Refill: limiter.RefillInterval, Initial: limiter.InitialEmpty},
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

// TestNonsenseStartsAgain: a state that Weir cannot have left is no state. The counter is decided as one that was never
// hit, alone and beside others, and is then an ordinary one: with a time to live, and without an effect on anything
// else.
func TestNonsenseStartsAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c, clock := client(t, server), limitertest.NewClock()
	var reported []string
	s := open(t, server.SocketURL(), redisstore.Options{
		Now: clock.Now,
		OnRestart: func(counters uint64, key string) {
			reported = append(reported, fmt.Sprint(counters, " ", key))
		},
	})
	states, start := nonsense(clock.Now()), time.Now()
	restarted := 0
	for i, p := range everyStep(t) {
		for j, state := range states {
			name := fmt.Sprintf("%d %s/%.60q", i, p.Algorithm(), state)
			costs := []int64{1, 0, 11, -1}
			keyOf := func(n int64) string { return fmt.Sprint(i, " ", j, " ", n) }
			plant := c.Pipeline()
			for _, n := range costs {
				plant.Set(t.Context(), "weir:1:"+keyOf(n), state, 0)
			}
			plant.Set(t.Context(), "weir:1:many", state, 0)
			plant.Del(t.Context(), "weir:1:first", "weir:1:last")
			execute(t, plant)
			before, ttls := s.Stats().Restarted, c.Pipeline()
			for _, n := range costs {
				key := keyOf(n)
				next, want := p.Step(limiter.State{}, clock.Now(), n)
				got := take(t, s, key, p, n)
				if isLegit(p, state, clock.Now()) {
					continue
				}
				if got != want {
					t.Errorf("%s, cost %d: %+v, want %+v", name, n, got, want)
				}
				got = take(t, s, key, p, 1)
				if _, want = p.Step(next, clock.Now(), 1); got != want {
					t.Errorf("%s, a second hit after %d: %+v, want %+v", name, n, got, want)
				}
				ttls.PTTL(t.Context(), "weir:1:"+key)
			}
			for _, cmd := range execute(t, ttls) {
				if ttl, ok := cmd.(*redis.DurationCmd); !ok || ttl.Val() == -1 {
					t.Errorf("%s: the key stays for ever: %s", name, cmd)
				}
			}
			beside(t, s, name, p)
			if s.Stats().Restarted > before {
				restarted++
			} else if !isLegit(p, state, clock.Now()) && !quietly(p, state, clock.Now()) {
				t.Errorf("%s: is not counted", name)
			}
		}
	}
	if most := 1 + int(time.Since(start)/time.Minute); len(reported) == 0 || len(reported) > most ||
		!strings.HasPrefix(reported[0], "1 weir:1:0 ") {
		t.Errorf("reported %q, want the first one, and no more than one a minute", reported)
	}
	t.Logf("%d of %d were counted", restarted, len(states)*len(everyStep(t)))
}

// isLegit says whether the state may be one of the policy's: a debt that takes two years to pay back, or a log whose
// end is in order. Of a log, a step does not read all: what is wrong in the midst of it goes with the window.
func isLegit(p *limiter.Policy, state string, now int64) bool {
	switch p.Algorithm() {
	case limiter.SlidingLog, limiter.Concurrency:
		return len(state)%16 == 8 && strings.HasSuffix(state, hitsNow)
	case limiter.SmoothWarmingUp:
		return len(state) >= 32 && state[16:24] == packedDoubles(far(now))
	case limiter.Funnel, limiter.LeakyQueue, limiter.SmoothBursty, limiter.TokenBucket:
		owes := p.ChargeDenied() == limiter.ChargeFull || p.Algorithm() == limiter.SmoothBursty
		return owes && p.Params().Refill == limiter.RefillGreedy && strings.HasPrefix(state, packedDoubles(far(now), 1))
	default:
		return false
	}
}

// quietly says whether the policy reads the state as one that is over long ago.
func quietly(p *limiter.Policy, state string, now int64) bool {
	var of []float64
	for at := 0; at+8 <= len(state); at += 8 {
		of = append(of, math.Float64frombits(binary.BigEndian.Uint64([]byte(state[at:at+8]))))
	}
	if len(of) < 2 {
		return false
	}
	newest := of[0]
	switch p.Algorithm() {
	case limiter.SlidingLog, limiter.Concurrency:
		newest = of[len(of)-2]
	case limiter.SlidingWindow:
		newest = (of[0] + 1) * of[1]
	default:
	}
	return newest < float64(now-p.Window().Microseconds())
}

// execute sends commands in one round trip. An error of any of them ends the test.
func execute(t *testing.T, commands redis.Pipeliner) []redis.Cmder {
	t.Helper()
	done, err := commands.Exec(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// beside has the counter "many" decided among others that are fresh, in one request.
func beside(t *testing.T, s *redisstore.Store, name string, p *limiter.Policy) {
	t.Helper()
	ten := funnel(t, 10, time.Hour)
	hits := []limiter.Hit{
		{Key: "first", Policy: ten, N: 1},
		{Key: "many", Policy: p, N: 1},
		{Key: "last", Policy: ten, N: 1},
	}
	out := make([]limiter.Decision, len(hits))
	if err := s.Take(t.Context(), hits, out); err != nil {
		t.Errorf("%s beside others: %v", name, err)
		return
	}
	if want := int64(9); limiter.Admitted(hits, out) && (out[0].Remaining != want || out[2].Remaining != want) {
		t.Errorf("%s beside others: %+v", name, out)
	}
}
