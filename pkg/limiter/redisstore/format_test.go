package redisstore_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/limitertest"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// TestStateGolden pins the format of the states, because processes of two releases share counters during an upgrade. If
// you change a format, also change FormatVersion or the algorithm's part of the key. Every counter with the format then
// starts again.
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
	for _, name := range step.Names(limiter.Algorithms()) {
		a, err := limiter.ParseAlgorithm(name)
		if err != nil {
			t.Fatal(err)
		}
		state(name, limiter.Params{Algorithm: a, Limit: 10, Window: 10 * time.Second})
	}
	state("token_bucket.interval", limiter.Params{
		Algorithm: limiter.TokenBucket, Limit: 10, Window: 10 * time.Second, RefillsAtOnce: true,
	})
	want := map[string]string{
		"concurrency":           "\x00\x00\x00\x00\x00\x00\x00\x00C\x19\x94\\\xa2i\x89\x00@\x00\x00\x00\x00\x00\x00\x00C\x19\x94\\\xa2\xa6\x92\x00@\b\x00\x00\x00\x00\x00\x00",
		"fixed_window":          "C\x19\x94\\\xa2b\x00\x00@\b\x00\x00\x00\x00\x00\x00C\x19\x94\\\xa4\xc4Z\x00",
		"funnel":                "C\x19\x94\\\xa3 \xa4\x00A>\x84\x80\x00\x00\x00\x00",
		"leaky_queue":           "C\x19\x94\\\xa5\b\xec\x00Ac\x12\xd0\x00\x00\x00\x00",
		"sliding_log":           "\x00\x00\x00\x00\x00\x00\x00\x00C\x19\x94\\\xa2i\x89\x00@\x00\x00\x00\x00\x00\x00\x00C\x19\x94\\\xa2\xa6\x92\x00@\b\x00\x00\x00\x00\x00\x00",
		"sliding_window":        "A\xda\xd2t\x80@\x00\x00A.\x84\x80\x00\x00\x00\x00C\x19\x94\\\xa5>l\x00\x00\x00\x00\x01\x00\x00\x00\x02",
		"smooth_bursty":         "C\x19\x94\\\xa3 \xa4\x00A>\x84\x80\x00\x00\x00\x00",
		"smooth_warming_up":     "A^\x84\x80\x00\x00\x00\x00Ac\x12\xd0\x00\x00\x00\x00C\x19\x94\\\xa3\xa6\xeb\x00AS\xd6 \x00\x00\x00\x00",
		"token_bucket":          "C\x19\x94\\\xa3 \xa4\x00A>\x84\x80\x00\x00\x00\x00",
		"token_bucket.interval": "C\x19\x94\\\xa2i\x89\x00@\b\x00\x00\x00\x00\x00\x00",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("states in Redis (-want +got):\n%s", diff)
	}
}
