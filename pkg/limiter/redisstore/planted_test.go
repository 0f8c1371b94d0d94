package redisstore_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/limitertest"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// TestStatesThatTakeMillionsOfHits begins with written states: logs with totals near 2^53, and counts and debts near
// 2^52. The script and the Go step must agree about each later hit.
func TestStatesThatTakeMillionsOfHits(t *testing.T) {
	server := redistest.Start(t)
	c, clock := client(t, server), limitertest.NewClock()
	s := open(t, server.SocketURL(), redisstore.Options{Now: clock.Now})
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 160 {
		a, now, text := limiter.SlidingLog, clock.Now(), packedLog
		var state storekit.State
		switch i % 4 {
		case 0:
			state = plantedLog(rng, now, 1<<53-1-rng.Int64N(12))
		case 1:
			a, state = limiter.Concurrency, plantedLog(rng, now, 1<<53-1-rng.Int64N(12))
		case 2: // the first entry's debt is near the most
			state = plantedLog(rng, now, 1<<52-rng.Int64N(9))
			state.A = 7
		case 3:
			a, state, text = limiter.FixedWindow, storekit.State{A: now - now%10_000_000, B: 1<<52 - rng.Int64N(9)}, tenSeconds
		}
		p := policy(t, limiter.Params{
			Algorithm: a, Limit: 5, Window: 10 * time.Second, ChargeDenied: limiter.ChargeNone + limiter.ChargeDenied(i/4%3),
		})
		key := fmt.Sprintf("%s/%d", a, i)
		if err := c.Set(t.Context(), "weir:1:"+key, text(state), 0).Err(); err != nil {
			t.Fatal(err)
		}
		for step := range 12 {
			n := []int64{1, 1, 2, 3, -1, 0, limiter.MaxHits}[rng.IntN(7)]
			var want limiter.Decision
			state, want = storekit.Step(p, state, clock.Now(), n)
			if got := take(t, s, key, p, n); got != want {
				t.Fatalf("%s, step %d, cost %d:\ngot  %+v\nwant %+v", key, step, n, got, want)
			}
			got, err := c.Get(t.Context(), "weir:1:"+key).Result()
			if isNew := state.B == 0 && state.List == nil; got != text(state) && (!isNew || !errors.Is(err, redis.Nil)) {
				t.Fatalf("%s, step %d, cost %d: state %q, want %q", key, step, n, got, text(state))
			}
			clock.Advance(time.Duration(rng.Int64N(3)) * time.Second)
		}
	}
}

// plantedLog returns the state of a log with two entries of cost 1 or 2, and a total of at most 2^53 - 1.
func plantedLog(rng *rand.Rand, now, total int64) storekit.State {
	s := storekit.State{A: total}
	for _, ago := range []int64{9_000_000, 5_000_000} {
		total = min(total+1+rng.Int64N(2), 1<<53-1)
		s.List = append(s.List, now-ago, total)
	}
	return s
}

// tenSeconds returns the state of a fixed window of ten seconds, in the form of Redis.
func tenSeconds(s storekit.State) string { return doubles(s.A, s.B, s.A+10_000_000) }

// packedLog returns the state of a log, in the form of Redis.
func packedLog(s storekit.State) string { return doubles(append([]int64{s.A}, s.List...)...) }

// doubles returns integers in the form of states in Redis.
func doubles(numbers ...int64) string {
	var out []byte
	for _, v := range numbers {
		out = binary.BigEndian.AppendUint64(out, math.Float64bits(float64(v)))
	}
	return string(out)
}
