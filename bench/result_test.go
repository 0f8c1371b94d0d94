package main

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0},
		{[]float64{3}, 3},
		{[]float64{9, 1}, 5},
		{[]float64{7, 100, 2}, 7},
		{[]float64{4, 1, 3, 2}, 2.5},
	} {
		if got := median(c.values); got != c.want {
			t.Errorf("median of %v is %g, want %g", c.values, got, c.want)
		}
	}
}

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

func TestMarkdown(t *testing.T) {
	base := []sample{{ReqPerSec: 40_000, P50: 1000, P999: 2000, Server: 20}}
	r := report{
		Machine:  machine{CPU: "Example", CPUs: 2, OS: "linux/amd64", Go: "go1.26"},
		Settings: settings{Rounds: 1, Duration: time.Second, Concurrency: 64, Connections: 4, Algorithm: "funnel"},
		Rows: []row{
			newRow("w5", nameNoop, base, base),
			newRow("w5", "redis",
				[]sample{{ReqPerSec: 20_000, P50: 1700, P99: 2500, P999: 3000, Server: 30, Redis: 8, Calls: 1}}, base),
			newRow("w4", "alone", []sample{{Denied: 0.104}}, nil),
		},
	}
	var b strings.Builder
	r.markdown(&b)
	for _, want := range []string{
		"Example, 2 CPUs, linux/amd64, go1.26. Medians of 1 interleaved rounds of 1s; 64 requests " +
			"outstanding over 4 connections; funnel.",
		"w5: 1 descriptor, 10,000 uniform keys, all OK; open loop at half of the rate of w1",
		"| redis | 20000 | 1700 | 2500 | 3000 | 30.0 + 8.0 | 1 | 0.0 % | 1.90 | 1.70 | 1.50 | 0 % |",
		"| alone | 0 | 0 | 0 | 0 | 0.0 + 0.0 | 0 | 10.4 % |  |  |  | 0 % |",
	} {
		if !strings.Contains(b.String(), want+"\n") {
			t.Errorf("no line %q in:\n%s", want, b.String())
		}
	}
}

func TestOthersShare(t *testing.T) {
	for stat, want := range map[string]time.Duration{
		"cpu  100 20 3 1000 500 4 5 6 7 8\ncpu0 9": 1380 * time.Millisecond,
		"cpu  1 2 3": 0, "cpu  a 20 3 1000 500 4 5 6 7 8": 0, "": 0,
	} {
		got, err := busy(stat)
		if got != want || (want == 0) != (err != nil) {
			t.Errorf("%q: busy for %v, %v; want %v", stat, got, err, want)
		}
	}
	all := time.Duration(runtime.NumCPU()) * time.Second
	spent := between(t, time.Second, usage{machine: time.Hour}, usage{
		machine: time.Hour + all, server: all / 4, redis: all / 16, envoy: all / 16, self: all / 8,
	})
	if got := spent.others(); got != 0.5 {
		t.Errorf("others took %g, want 0.5", got)
	}
}
