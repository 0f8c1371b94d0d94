package redisstore_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/limitertest"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// TestLogThatIsCountedAnew goes on with logs whose totals are near 2^53, which takes millions of hits to reach: they
// are planted. Script and Go step must agree about each hit that follows.
func TestLogThatIsCountedAnew(t *testing.T) {
	server := redistest.Start(t)
	c, clock := client(t, server), limitertest.NewClock()
	s := open(t, redisstore.Options{URL: server.SocketURL(), Now: clock.Now})
	rng := rand.New(rand.NewPCG(1, 2))
	for _, a := range []limiter.Algorithm{limiter.SlidingLog, limiter.Concurrency} {
		for i := range 60 {
			charge := limiter.ChargeNone + limiter.ChargeDenied(i%3)
			p := policy(t, limiter.Params{Algorithm: a, Limit: 5, Window: 10 * time.Second, ChargeDenied: charge})
			key, now := fmt.Sprintf("%s/%d", a, i), clock.Now()
			base := int64(1<<53-1) - rng.Int64N(12)
			state := limiter.State{A: base, List: []int64{now - 9_000_000, base, now - 5_000_000, base}}
			for e := 1; e < len(state.List); e += 2 { // each entry costs 1 or 2, up to exactly 2^53 - 1
				base = min(base+1+rng.Int64N(2), 1<<53-1)
				state.List[e] = base
			}
			if err := c.Set(t.Context(), "weir:1:"+key, packed(state), 0).Err(); err != nil {
				t.Fatal(err)
			}
			for step := range 12 {
				n := []int64{1, 1, 2, 3, -1, 0, limiter.MaxHits}[rng.IntN(7)]
				var want limiter.Decision
				state, want = p.Step(state, clock.Now(), n)
				if got := take(t, s, key, p, n); got != want {
					t.Fatalf("%s, step %d, cost %d:\ngot  %+v\nwant %+v", key, step, n, got, want)
				}
				clock.Advance(time.Duration(rng.Int64N(3)) * time.Second)
			}
		}
	}
}

// packed is a log's state as lua/sliding_log.lua writes it.
func packed(s limiter.State) []byte {
	out := binary.BigEndian.AppendUint64(nil, math.Float64bits(float64(s.A)))
	for _, v := range s.List {
		out = binary.BigEndian.AppendUint64(out, math.Float64bits(float64(v)))
	}
	return out
}
