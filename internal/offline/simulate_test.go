package offline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// limitsOf are the limits of rate_limits.
func limitsOf(t *testing.T, rateLimits ...string) (limits []Limit) {
	t.Helper()
	for _, rateLimit := range rateLimits {
		limits = append(limits, Limits(compile(t, "- {key: k, rate_limit: {"+rateLimit+"}}\n"))...)
	}
	return limits
}

// arrivalsOf is the traffic of a specification.
func arrivalsOf(t *testing.T, spec string, length time.Duration, seed uint64) []int64 {
	t.Helper()
	traffic, err := ParseTraffic(spec)
	if err != nil {
		t.Fatal(err)
	}
	arrivals, err := traffic.Arrivals(length, seed)
	if err != nil {
		t.Fatal(err)
	}
	return arrivals
}

func simulated(t *testing.T, limits []Limit, arrivals []int64, o SimulationOptions) *Simulation {
	t.Helper()
	r, err := Simulate(t.Context(), limits, arrivals, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func newReport(t *testing.T) *Simulation {
	t.Helper()
	const rule, traffic = "algorithm: funnel, requests_per_unit: 10, unit: second, burst: 20", "poisson:20/s"
	limits := limitsOf(t, rule, "algorithm: leaky_queue, requests_per_unit: 10, unit: second",
		"algorithm: concurrency, requests_per_unit: 10")
	o := SimulationOptions{Length: 10 * time.Second, Duration: 600 * time.Millisecond}
	r := simulated(t, limits, arrivalsOf(t, traffic, o.Length, 7), o)
	r.Rule, r.Traffic, r.Seed = rule+" & <more>", traffic, 7
	return r
}

// What a seed shows does not change by itself.
func TestGolden(t *testing.T) {
	r := newReport(t)
	write := map[string]func(io.Writer) error{
		"report.txt": func(w io.Writer) error {
			fmt.Fprintln(w, r.Heading())
			if err := r.WriteTable(w); err != nil {
				return err
			}
			r.WriteCharts(w)
			return nil
		},
		"report.json": func(w io.Writer) error {
			e := json.NewEncoder(w)
			e.SetIndent("", "  ")
			e.SetEscapeHTML(false)
			return e.Encode(r)
		},
	}
	for name, write := range write {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			if err := write(&got); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", name)
			if flag.Lookup("update").Value.String() == "true" { // of casetest, which imports this package
				if err := os.WriteFile(path, got.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("%s (-update to write it):\n%s", path, diff)
			}
		})
	}
}

// Charts fit 80 columns, however long the traffic lasts.
func TestChartsFit(t *testing.T) {
	for _, length := range []time.Duration{
		10 * time.Millisecond, 7 * time.Second, 61 * time.Second, 4000 * time.Hour,
		MaxLength,
	} {
		limits := limitsOf(t, "requests_per_unit: 10, unit: minute")
		o := SimulationOptions{Length: length, Duration: time.Second}
		r := simulated(t, limits, []int64{0, length.Microseconds() - 1}, o)
		var b bytes.Buffer
		r.WriteCharts(&b)
		for line := range strings.Lines(b.String()) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 {
				t.Errorf("%s: %d columns: %s", length, n, line)
			}
		}
	}
}

// The worst window equals the result of trying the window of every request.
func TestWorstIsNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := rapid.Int64Range(1, 50).Draw(t, "window")
		passed := rapid.SliceOfN(rapid.Int64Range(0, 200), 0, 40).Draw(t, "passed")
		want := int64(0)
		for _, first := range passed {
			n := int64(0)
			for _, at := range passed {
				if at >= first && at < first+w {
					n++
				}
			}
			want = max(want, n)
		}
		if got := worst(slices.Clone(passed), w); got != want {
			t.Errorf("worst window %d, want %d", got, want)
		}
	})
}

// What the simulation counts, on traffic that can be worked out by hand.
func TestRun(t *testing.T) {
	ms := func(n int64) Seconds { return Seconds(n) * Seconds(time.Millisecond) }
	for _, c := range []struct {
		name, rule, traffic string
		duration            time.Duration
		cost                int64
		want                Result
	}{
		{
			"twice the limit around an edge", "requests_per_unit: 5, unit: second", "step:0/s,100/s@950ms,0/s@1050ms", 0,
			0,
			Result{Offered: 10, Admitted: 10, Worst: 10, Bound: 10},
		},
		{
			"a locked out second", "requests_per_unit: 2, unit: second", "constant:10/s", 0,
			0,
			Result{Offered: 20, Admitted: 4, Denied: 16, Worst: 2, Bound: 4, Lockout: ms(700)},
		},
		{
			"C and N", "algorithm: funnel, requests_per_unit: 10, unit: second, burst: 3", "constant:20/s", 0,
			0,
			Result{Offered: 40, Admitted: 22, Denied: 18, Worst: 12, Bound: 13},
		},
		{
			"a queue", "algorithm: leaky_queue, requests_per_unit: 10, unit: second, burst: 4", "burst:8x10s", 0,
			0,
			Result{Offered: 8, Admitted: 5, Denied: 3, Worst: 5, Bound: 11, LongestWait: ms(400), MeanWait: ms(200)},
		},
		{
			// Two requests in store are dearer: the first costs 350 ms, the next 250 ms, and then each 200 ms.
			"warming up", "algorithm: smooth_warming_up, requests_per_unit: 5, unit: second, warm_up: 600ms, cold_factor: 2",
			"constant:100/s", 0,
			0,
			Result{Offered: 200, Admitted: 9, Denied: 191, Worst: 5, Bound: 6, Lockout: ms(330)},
		},
		{
			"in flight", "algorithm: concurrency, requests_per_unit: 3", "constant:10/s", 400 * time.Millisecond,
			0,
			Result{Offered: 20, Admitted: 15, Denied: 5, Worst: 3, Bound: 3},
		},
		{
			// Two of four requests a second pass. A request whose lease has ended does not end another one.
			"leases that end with their requests", "algorithm: concurrency, requests_per_unit: 2, lease: 1s", "constant:4/s",
			time.Second,
			0,
			Result{Offered: 8, Admitted: 4, Denied: 4, Worst: 2, Bound: 2, Lockout: ms(250)},
		},
		{
			"a cost", "requests_per_unit: 10, unit: second", "burst:3x1s", 0,
			4,
			Result{Offered: 6, Admitted: 4, Denied: 2, Worst: 8, Bound: 20},
		},
		{
			"a reservation", "requests_per_unit: 100, unit: minute, reservation: {estimate: 10}", "burst:50x1s",
			500 * time.Millisecond,
			4,
			Result{Offered: 100, Admitted: 16, Denied: 84, Worst: 64, Bound: 200, Charged: 160, Returned: 96},
		},
		{
			"ends by cost", "requests_per_unit: 100, unit: minute, reservation: {estimate: 10, ends: cost}", "burst:50x1s",
			500 * time.Millisecond,
			4,
			Result{Offered: 100, Admitted: 16, Denied: 84, Worst: 64, Bound: 200, Charged: 160, Returned: 96},
		},
		{
			"an estimate that is too small", "requests_per_unit: 100, unit: minute, reservation: {estimate: 2}", "burst:60x1s",
			500 * time.Millisecond,
			4,
			Result{Offered: 120, Admitted: 50, Denied: 70, Worst: 200, Bound: 400, Charged: 200, Lockout: ms(1000)},
		},
		{
			"a ban", "requests_per_unit: 0, unit: second", "constant:1/s", 0,
			0,
			Result{Offered: 2, Denied: 2, Lockout: ms(1000)},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			limits := limitsOf(t, c.rule)
			o := SimulationOptions{Length: 2 * time.Second, Duration: c.duration, Cost: c.cost}
			got := *simulated(t, limits, arrivalsOf(t, c.traffic, o.Length, 1), o).Runs[0].Result
			got.Buckets = nil
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A calendar's windows begin with the traffic, and three of them can meet in a day if one has 23 hours.
func TestCalendar(t *testing.T) {
	limits := limitsOf(t, "requests_per_unit: 2, unit: day, align: calendar, time_zone: Europe/Berlin")
	const day = 24 * time.Hour
	for _, c := range []struct {
		name string
		days int
		at   []time.Duration // since the beginning of 2026-01-02 in Berlin
		want Result
	}{
		{
			"winter", 2,
			[]time.Duration{0, time.Hour, day - time.Microsecond, day, day + time.Hour},
			Result{Offered: 5, Admitted: 4, Denied: 1, Worst: 2, Bound: 4},
		},
		{
			"the end of winter", 90,
			[]time.Duration{
				86*day - time.Minute, 86*day - time.Second, 86 * day, 86*day + time.Hour, 86*day + 23*time.Hour,
				86*day + 23*time.Hour,
			},
			Result{Offered: 6, Admitted: 6, Worst: 6, Bound: 6},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var arrivals []int64
			for _, at := range c.at {
				arrivals = append(arrivals, at.Microseconds())
			}
			o := SimulationOptions{Length: time.Duration(c.days) * day}
			got := *simulated(t, limits, arrivals, o).Runs[0].Result
			got.Buckets = nil
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	if got, want := limits[0].String(), "fixed_window: 2 per 1d, calendar of Europe/Berlin"; got != want {
		t.Errorf("it is called %s, want %s", got, want)
	}
}

// A simulation ends when nobody waits for it.
func TestSimulateIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	limits := limitsOf(t, "requests_per_unit: 1, unit: second")
	o := SimulationOptions{Length: time.Second}
	if _, err := Simulate(ctx, limits, []int64{0}, o); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}

// Traffic follows its specification.
func TestTraffic(t *testing.T) {
	times := func(arrivals []int64) (ms []int64) {
		for _, a := range arrivals {
			ms = append(ms, a/1000)
		}
		return ms
	}
	for spec, want := range map[string][]int64{
		"constant:4/s":                  {0, 250, 500, 750},
		"constant:120/m":                {0, 500},
		"burst:2x400ms":                 {0, 0, 400, 400, 800, 800},
		"step:2/s,0/s@600ms,20/s@900ms": {0, 500, 900, 950},
		"step:10/s@850ms":               {850, 950},
	} {
		if diff := cmp.Diff(want, times(arrivalsOf(t, spec, time.Second, 1))); diff != "" {
			t.Errorf("%s:\n%s", spec, diff)
		}
	}
}

// Poisson traffic has its rate, and depends on the seed alone.
func TestPoisson(t *testing.T) {
	one, again := arrivalsOf(t, "poisson:100/s", time.Minute, 1), arrivalsOf(t, "poisson:100/s", time.Minute, 1)
	if !slices.Equal(one, again) {
		t.Error("equal seeds make different traffic")
	}
	if other := arrivalsOf(t, "poisson:100/s", time.Minute, 2); slices.Equal(one, other) {
		t.Error("different seeds make equal traffic")
	}
	if n := len(one); n < 5700 || n > 6300 {
		t.Errorf("%d requests in a minute of 100/s", n)
	}
}

// Errors in traffic show how to correct it.
func TestTrafficErrors(t *testing.T) {
	for spec, want := range map[string]string{
		"steady:5/s": `"steady:5/s" is not a form of traffic: write one of constant:100/s, poisson:100/s, ` +
			`burst:50x10s, step:10/s,100/s@10s`,
		"constant:5":         `"5" is not a rate per s, m or h; write it like constant:100/s`,
		"constant:-1/s":      `"-1/s" is not a rate`,
		"poisson:NaN/s":      `"NaN/s" is not a rate`,
		"burst:50":           `"" is not a time of 1ms or more; write it like burst:50x10s`,
		"burst:0x1s":         `"0" is not a number of requests from 1 to`,
		"step:1/s@-1s":       `"1/s@-1s" must come later than the rate before it`,
		"step:1/s,2/s@x":     `"x" is not a time; write it like step:10/s,100/s@10s`,
		"step:1/s@2s,2/s@1s": `"2/s@1s" must come later than the rate before it`,
	} {
		if _, err := ParseTraffic(spec); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %s", spec, err, want)
		}
	}
	for spec, want := range map[string]string{
		"constant:1000000/s": `"constant:1000000/s" makes more than 2000000 requests in 1m0s; write a shorter --for or a lower rate`,
		"constant:0/s":       `"constant:0/s" makes no request in 1m0s; write a longer --for or a higher rate`,
		"poisson:0/s":        `makes no request`,
	} {
		traffic, err := ParseTraffic(spec)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := traffic.Arrivals(time.Minute, 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %s", spec, err, want)
		}
	}
}
