package limiter_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

func TestNewPolicySaysWhatIsWrong(t *testing.T) {
	const (
		hour  = time.Hour
		prime = 4_294_967_291
	)
	for name, c := range map[string]struct {
		in   limiter.Params
		want []string
	}{
		"no algorithm": {
			limiter.Params{Limit: 1, Window: hour},
			[]string{"algorithm: must be one of fixed_window, funnel, token_bucket, sliding_window, sliding_log"},
		},
		"negative limit": {
			limiter.Params{Algorithm: limiter.Funnel, Limit: -1, Window: hour},
			[]string{"requests_per_unit: must be between 0 and 4294967295, got -1"},
		},
		"limit that Envoy cannot say": {
			limiter.Params{Algorithm: limiter.FixedWindow, Limit: 1 << 32, Window: hour},
			[]string{"requests_per_unit: must be between 0 and 4294967295, got 4294967296"},
		},
		"no window": {
			limiter.Params{Algorithm: limiter.FixedWindow, Limit: 1},
			[]string{"window: must be between 1ms and 87600h0m0s (10 years), got 0s"},
		},
		"long window": {
			limiter.Params{Algorithm: limiter.FixedWindow, Limit: 1, Window: limiter.MaxWindow + hour},
			[]string{"window: must be between 1ms and 87600h0m0s (10 years), got 87601h0m0s"},
		},
		"window of nanoseconds": {
			limiter.Params{Algorithm: limiter.FixedWindow, Limit: 1, Window: time.Second + 1},
			[]string{"window: must be a whole number of microseconds, got 1.000000001s"},
		},
		"all at once": {
			limiter.Params{
				Algorithm: limiter.FixedWindow, Limit: 1, Window: hour, Burst: -1, Segments: 1001, SegmentCap: -1, MaxLogEntries: 1_000_001,
				Oldest: limiter.OldestFull,
			},
			[]string{
				"burst: must be between 0 and 4294967295, got -1",
				"segments: must be between 0 and 1000, got 1001",
				"segment_cap: must be between 0 and 4294967295, got -1",
				"max_log_entries: must be between 0 and 1000000, got 1000001",
				"burst: is not a parameter of fixed_window, which takes align, charge_denied",
				"segments: is not a parameter of fixed_window, which takes align, charge_denied",
				"segment_cap: is not a parameter of fixed_window, which takes align, charge_denied",
				"oldest: is not a parameter of fixed_window, which takes align, charge_denied",
				"max_log_entries: is not a parameter of fixed_window, which takes align, charge_denied",
			},
		},
		"align of a funnel": {
			limiter.Params{Algorithm: limiter.Funnel, Limit: 1, Window: hour, Align: limiter.AlignFirstHit},
			[]string{"align: is not a parameter of funnel, which takes burst, charge_denied"},
		},
		"long log": {
			limiter.Params{Algorithm: limiter.SlidingLog, Limit: 10_001, Window: hour},
			[]string{"requests_per_unit: a sliding_log remembers every hit, so it takes at most max_log_entries = 10000 per window, " +
				"got 10001; use sliding_window, or raise max_log_entries"},
		},
		"segments that do not divide": {
			limiter.Params{Algorithm: limiter.SlidingWindow, Limit: 1, Window: time.Second, Segments: 3},
			[]string{"segments: 3 segments of 1s are not whole microseconds; use 2"},
		},
		"segments of an odd window": {
			limiter.Params{Algorithm: limiter.SlidingWindow, Limit: 1, Window: 1_000_003 * time.Microsecond},
			[]string{"segments: 10 segments of 1.000003s are not whole microseconds; use 1"},
		},
		"segment_cap above the limit": {
			limiter.Params{Algorithm: limiter.SlidingWindow, Limit: 5, Window: hour, SegmentCap: 6},
			[]string{"segment_cap: must be at most the limit, 5, got 6"},
		},
		"funnel beyond 53 bits": {
			limiter.Params{Algorithm: limiter.Funnel, Limit: prime, Window: limiter.MaxWindow},
			[]string{"burst: 4294967291 at 4294967291 per 87600h0m0s needs more than 53 bits to count exactly; " +
				"choose a smaller burst or a rate with fewer digits"},
		},
		"segments beyond 53 bits": {
			limiter.Params{Algorithm: limiter.SlidingWindow, Limit: prime, Window: limiter.MaxWindow, Segments: 1},
			[]string{"requests_per_unit: 4294967291 in segments of 87600h0m0s need more than 53 bits to count exactly; " +
				"use more segments, or whole seconds"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := limiter.NewPolicy(c.in)
			if err == nil {
				t.Fatalf("NewPolicy(%+v) accepted it: %+v", c.in, p)
			}
			if diff := cmp.Diff(c.want, strings.Split(err.Error(), "\n")); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			var param *limiter.ParamError
			if !errors.As(err, &param) || !strings.HasPrefix(c.want[0], param.Param+": ") {
				t.Errorf("the error names %+v first, want that of %q", param, c.want[0])
			}
		})
	}
}

func TestPolicyTellsWhatItIs(t *testing.T) {
	type told struct {
		Limit, Capacity int64
		Window          time.Duration
		ChargeDenied    limiter.ChargeDenied
	}
	for _, c := range []struct {
		in   limiter.Params
		want told
	}{
		{
			limiter.Params{Algorithm: limiter.FixedWindow, Limit: 5, Window: time.Hour},
			told{5, 5, time.Hour, limiter.ChargeFull},
		},
		{
			limiter.Params{Algorithm: limiter.FixedWindow, Limit: 5, Window: time.Hour, ChargeDenied: limiter.ChargeNone},
			told{5, 5, time.Hour, limiter.ChargeNone},
		},
		{
			limiter.Params{Algorithm: limiter.Funnel, Limit: 5, Window: time.Second},
			told{5, 5, time.Second, limiter.ChargeNone},
		},
		{
			limiter.Params{Algorithm: limiter.TokenBucket, Limit: 5, Window: time.Second, Burst: 50, ChargeDenied: limiter.ChargeRemaining},
			told{5, 50, time.Second, limiter.ChargeRemaining},
		},
		{
			limiter.Params{Algorithm: limiter.SlidingWindow, Limit: 5, Window: time.Second, SegmentCap: 2},
			told{5, 2, time.Second, limiter.ChargeNone},
		},
		{
			limiter.Params{Algorithm: limiter.SlidingLog, Limit: 20_000, Window: time.Second, MaxLogEntries: 20_000},
			told{20_000, 20_000, time.Second, limiter.ChargeNone},
		},
		{
			limiter.Params{Algorithm: limiter.Funnel, Window: time.Second, Burst: 7},
			told{0, 0, time.Second, limiter.ChargeNone},
		},
	} {
		p, err := limiter.NewPolicy(c.in)
		if err != nil {
			t.Fatal(err)
		}
		got := told{p.Limit(), p.Capacity(), p.Window(), p.ChargeDenied()}
		if p.Algorithm() != c.in.Algorithm || got != c.want {
			t.Errorf("%s: (-want +got)\n%s", p.Algorithm(), cmp.Diff(c.want, got))
		}
	}
}

func TestNames(t *testing.T) {
	for _, a := range algorithms {
		if got, err := limiter.ParseAlgorithm(a.String()); err != nil || got != a {
			t.Errorf("ParseAlgorithm(%q) = %d, %v", a, got, err)
		}
	}
	for _, c := range []limiter.ChargeDenied{limiter.ChargeNone, limiter.ChargeRemaining, limiter.ChargeFull} {
		if got, err := limiter.ParseChargeDenied(c.String()); err != nil || got != c {
			t.Errorf("ParseChargeDenied(%q) = %d, %v", c, got, err)
		}
	}
	for _, o := range []limiter.Oldest{limiter.OldestProportional, limiter.OldestFull, limiter.OldestNone} {
		if got, err := limiter.ParseOldest(o.String()); err != nil || got != o {
			t.Errorf("ParseOldest(%q) = %d, %v", o, got, err)
		}
	}
	for _, a := range []limiter.Align{limiter.AlignEpoch, limiter.AlignFirstHit} {
		if got, err := limiter.ParseAlign(a.String()); err != nil || got != a {
			t.Errorf("ParseAlign(%q) = %d, %v", a, got, err)
		}
	}
	_, err := limiter.ParseOldest("half")
	if want := `"half" is not known: use one of proportional, full, none`; err == nil || err.Error() != want {
		t.Errorf("ParseOldest(half): %v, want %s", err, want)
	}
}

// exact bounds what Lua counts without error.
const exact = 1 << 53

// FuzzPolicy: no parameters and no history make NewPolicy or a step panic or count beyond 53 bits.
func FuzzPolicy(f *testing.F) {
	sec := int64(time.Second)
	for charge := range uint8(4) {
		for algorithm := range uint8(6) {
			f.Add(algorithm, charge, uint8(0), uint8(0), int64(1), int64(limiter.MaxWindow), int64(0), int64(0), int64(0), uint64(1))
			f.Add(algorithm, charge, uint8(0), uint8(0), int64(limiter.MaxLimit), int64(limiter.MinWindow), int64(0), int64(0), int64(0), uint64(2))
			f.Add(algorithm, charge, uint8(0), uint8(0), int64(10_000), sec, int64(0), int64(0), int64(0), uint64(3))
			f.Add(algorithm, charge, uint8(0), uint8(0), int64(0), sec, int64(0), int64(0), int64(0), uint64(4))
		}
		for _, a := range []limiter.Algorithm{limiter.Funnel, limiter.TokenBucket} {
			f.Add(uint8(a), charge, uint8(0), uint8(0), int64(999_999_937), 3600*sec, int64(100_000), int64(0), int64(0), uint64(5))
			f.Add(uint8(a), charge, uint8(0), uint8(0), int64(1), int64(limiter.MaxWindow), int64(14), int64(0), int64(0), uint64(6))
			f.Add(uint8(a), charge, uint8(0), uint8(0), int64(limiter.MaxLimit), sec, int64(limiter.MaxLimit), int64(0), int64(0), uint64(7))
		}
		f.Add(uint8(limiter.FixedWindow), charge, uint8(0), uint8(1), int64(3), sec, int64(0), int64(0), int64(0), uint64(8))
		f.Add(uint8(limiter.SlidingWindow), charge, uint8(1), uint8(0), int64(10), 10*sec, int64(0), int64(3), int64(5), uint64(9))
		f.Add(uint8(limiter.SlidingWindow), charge, uint8(2), uint8(0), int64(limiter.MaxLimit), int64(limiter.MinWindow), int64(0), int64(1000), int64(5), uint64(10))
		f.Add(uint8(limiter.SlidingWindow), charge, uint8(0), uint8(0), int64(10), 10*sec, int64(0), int64(1), int64(0), uint64(11))
	}
	f.Fuzz(func(t *testing.T, algorithm, charge, oldest, align uint8, limit, window, burst, segments, segmentCap int64, seed uint64) {
		in := limiter.Params{
			Algorithm: limiter.Algorithm(algorithm), ChargeDenied: limiter.ChargeDenied(charge), Oldest: limiter.Oldest(oldest),
			Align: limiter.Align(align), Limit: limit, Window: time.Duration(window), Burst: burst, Segments: segments, SegmentCap: segmentCap,
		}
		p, err := limiter.NewPolicy(in)
		if err != nil {
			var param *limiter.ParamError
			if !errors.As(err, &param) || param.Param == "" || param.Msg == "" {
				t.Fatalf("NewPolicy(%+v): %v names no parameter", in, err)
			}
			return
		}
		for i, arg := range p.Args() {
			if arg < 0 || arg >= exact {
				t.Fatalf("%+v: number %d is %d", in, i, arg)
			}
		}
		extremeSteps(t, in, p, seed)
	})
}

// extremeSteps runs costs and clocks of all sizes, now and then under another policy of the algorithm, and checks
// that every number stays in its bounds.
func extremeSteps(t *testing.T, in limiter.Params, p *limiter.Policy, seed uint64) {
	t.Helper()
	other, err := limiter.NewPolicy(limiter.Params{Algorithm: in.Algorithm, Limit: 10, Window: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	rng := seed
	next := func(n int64) int64 { // splitmix64
		rng += 0x9e3779b97f4a7c15
		z := rng
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		return int64((z ^ z>>31) % uint64(n))
	}
	var s limiter.State
	now := int64(epoch)
	costs := []int64{1, 1, 2, 0, -1, p.Capacity(), p.Capacity() + 1, limiter.MaxHits, limiter.MaxHits, limiter.MaxHits, -limiter.MaxHits}
	spans := []int64{0, 0, 1, p.Window().Microseconds() / 10, p.Window().Microseconds(), 1e6, 1e12, -1, -1e6, -1e12}
	for range 300 {
		now = min(epoch+1e15, max(epoch, now+spans[next(int64(len(spans)))]))
		with := p
		if next(20) == 0 {
			with = other
		}
		n := min(limiter.MaxHits, costs[next(int64(len(costs)))])
		var d limiter.Decision
		s, d = with.Step(s, now, n)
		if d.Remaining < 0 || d.Remaining > with.Capacity() || d.RetryAfter < 0 || d.ResetAfter < 0 || d.ResetAfter == math.MaxInt64 {
			t.Fatalf("%+v, seed %d: cost %d at %d: %+v", in, seed, n, now, d)
		}
		for _, v := range append([]int64{s.A, s.B}, s.List...) {
			if v < 0 || v >= exact {
				t.Fatalf("%+v, seed %d: cost %d at %d: a number of the state is %d", in, seed, n, now, v)
			}
		}
	}
}
