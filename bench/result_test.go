package main

import (
	"context"
	"testing"
	"time"
)

// TestRatiosAreOfTheSameRound has ratios of 3, 2 and 1, whose median is 2; the ratio of the medians is 1.5.
func TestRatiosAreOfTheSameRound(t *testing.T) {
	base := []sample{
		{Server: 10, P50: 100, P999: 1000}, {Server: 40, P50: 400, P999: 4000}, {Server: 20, P50: 200, P999: 2000},
	}
	got := []sample{
		{Server: 22, Redis: 8, P50: 300, P999: 3000},
		{Server: 50, Redis: 30, P50: 800, P999: 8000},
		{Server: 18, Redis: 2, P50: 200, P999: 2000},
	}
	r := newRow("w1", "redis", got, base)
	if r.CPURatio != 2 || r.P50Ratio != 2 || r.P999Ratio != 2 {
		t.Errorf("ratios %g, %g, %g; want 2 each", r.CPURatio, r.P50Ratio, r.P999Ratio)
	}
	if r.Server != 22 || r.Redis != 8 || r.P50 != 300 {
		t.Errorf("medians %g, %g, %g; want 22, 8, 300", r.Server, r.Redis, r.P50)
	}
	if r := newRow("w1", "redis", got, nil); r.CPURatio != 0 {
		t.Errorf("ratio %g to nothing, want none", r.CPURatio)
	}
}

// between is the difference of two usages, as if so much time lay between them.
func between(t *testing.T, took time.Duration, usages ...usage) usage {
	t.Helper()
	read := func(context.Context) (next usage, _ error) {
		next, usages = usages[0], usages[1:]
		return next, nil
	}
	spent, err := during(t.Context(), read, func() {})
	if err != nil {
		t.Fatal(err)
	}
	spent.took = took
	return spent
}

func TestSampleIsPerRequest(t *testing.T) {
	got := &tally{ok: 300, over: 100}
	for range 400 {
		got.latency.add(time.Millisecond)
	}
	before := usage{server: time.Second, redis: time.Second, calls: 7}
	after := usage{server: time.Second + 8*time.Millisecond, redis: time.Second + 2*time.Millisecond, calls: 17}
	spent := between(t, 2*time.Second, before, after)
	s := newSample(got, &spent)
	if s.ReqPerSec != 200 || s.Server != 20 || s.Redis != 5 || s.Calls != 0.025 || s.Denied != 0.25 {
		t.Errorf("got %+v, want 200 req/s, 20 + 5 us, 0.025 calls, 0.25 denied", s)
	}
}
