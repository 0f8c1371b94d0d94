package main

import (
	"testing"
	"time"
)

// TestRatiosAreOfTheSameRound has ratios of 3, 2 and 1, whose median is 2; the ratio of the medians is 1.5.
func TestRatiosAreOfTheSameRound(t *testing.T) {
	base := []sample{
		{Server: 10, P50: 100}, {Server: 40, P50: 400}, {Server: 20, P50: 200},
	}
	got := []sample{
		{Server: 22, Redis: 8, P50: 300},
		{Server: 50, Redis: 30, P50: 800},
		{Server: 18, Redis: 2, P50: 200},
	}
	cpu := func(s sample) float64 { return s.Server + s.Redis }
	ratio := func(s, base sample) float64 { return cpu(s) / cpu(base) }
	if r := compared("%.1f", got, base, ratio); r != "2.0" {
		t.Errorf("the ratio is %s, want 2.0", r)
	}
	if r := medians(got); r.Server != 22 || r.Redis != 8 || r.P50 != 300 {
		t.Errorf("medians %g, %g, %g; want 22, 8, 300", r.Server, r.Redis, r.P50)
	}
	if r := compared("%.1f", got, nil, ratio); r != "" {
		t.Errorf("ratio %s to nothing, want none", r)
	}
}

func TestSampleIsPerRequest(t *testing.T) {
	got := &tally{ok: 300, over: 100}
	for range 400 {
		got.latency = append(got.latency, time.Millisecond)
	}
	spent := usage{server: 8 * time.Millisecond, redis: 2 * time.Millisecond, calls: 10, took: 2 * time.Second}
	s := newSample(got, &spent)
	if s.ReqPerSec != 200 || s.Server != 20 || s.Redis != 5 || s.Calls != 0.025 || s.Denied != 0.25 {
		t.Errorf("got %+v, want 200 req/s, 20 + 5 us, 0.025 calls, 0.25 denied", s)
	}
}
