package redisstore_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/limitertest"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// TestStateGolden pins the form of the states: sidecars of two releases share the counters of one format, during an
// upgrade and after it. If a form must change, formatVersion must too, or the algorithm's part of the key, and every
// counter of it starts again.
func TestStateGolden(t *testing.T) {
	server := redistest.Start(t)
	c, clock := client(t, server), limitertest.NewClock()
	s := open(t, server.SocketURL(), redisstore.Options{Now: clock.Now})
	got := map[string]string{}
	state := func(name string, in limiter.Params) {
		t.Helper()
		p := policy(t, in)
		clock.Set(1_800_000_000_123_456)
		take(t, s, name, p, 2)
		clock.Advance(time.Second)
		take(t, s, name, p, 1)
		text, err := c.Get(t.Context(), "weir:1:"+name).Result()
		if err != nil {
			t.Fatal(name, err)
		}
		got[name] = text
	}
	for _, name := range limiter.AlgorithmNames() {
		a, err := limiter.ParseAlgorithm(name)
		if err != nil {
			t.Fatal(err)
		}
		state(name, limiter.Params{Algorithm: a, Limit: 10, Window: 10 * time.Second})
	}
	state("token_bucket.interval", limiter.Params{
		Algorithm: limiter.TokenBucket, Limit: 10, Window: 10 * time.Second, Refill: limiter.RefillInterval,
	})
	want := map[string]string{
		"concurrency":           "\x00\x00\x00\x00\x00\x00\x00\x00C\x19\x94\\\xa2i\x89\x00@\x00\x00\x00\x00\x00\x00\x00C\x19\x94\\\xa2\xa6\x92\x00@\b\x00\x00\x00\x00\x00\x00",
		"fixed_window":          "1800000000000000 3",
		"funnel":                "1800000003123456.02000000",
		"leaky_queue":           "1800000011123456.010000000",
		"sliding_log":           "\x00\x00\x00\x00\x00\x00\x00\x00C\x19\x94\\\xa2i\x89\x00@\x00\x00\x00\x00\x00\x00\x00C\x19\x94\\\xa2\xa6\x92\x00@\b\x00\x00\x00\x00\x00\x00",
		"sliding_window":        "1800000001 1000000 1 2",
		"smooth_bursty":         "1800000003123456.02000000",
		"smooth_warming_up":     "1800000005323456.05200000 0 8000000 10000000",
		"token_bucket":          "1800000003123456.02000000",
		"token_bucket.interval": "1800000000123456 3",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("states in Redis (-want +got):\n%s", diff)
	}
}
