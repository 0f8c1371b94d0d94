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
			[]string{"algorithm: must be one of " + strings.Join(limiter.AlgorithmNames(), ", ")},
		},
		"negative limit": {
			limiter.Params{Algorithm: limiter.Funnel, Limit: -1, Window: hour},
			[]string{"limit: must be between 0 and 281474976710656, got -1"},
		},
		"limit beyond 2^48": {
			limiter.Params{Algorithm: limiter.FixedWindow, Limit: 1<<48 + 1, Window: hour},
			[]string{"limit: must be between 0 and 281474976710656, got 281474976710657"},
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
				Algorithm: limiter.FixedWindow, Limit: 1, Window: hour, Burst: -1, Segments: 1001, SegmentCap: -1,
				MaxLogEntries: 1_000_001,
				Oldest:        limiter.OldestFull,
			},
			[]string{
				"burst: must be between 0 and 281474976710656, got -1",
				"segments: must be between 0 and 1000, got 1001",
				"segment_cap: must be between 0 and 281474976710656, got -1",
				"max_log_entries: must be between 0 and 1000000, got 1000001",
				"burst: is not a parameter of fixed_window, which takes align, time_zone, charge_denied",
				"segments: is not a parameter of fixed_window, which takes align, time_zone, charge_denied",
				"segment_cap: is not a parameter of fixed_window, which takes align, time_zone, charge_denied",
				"oldest: is not a parameter of fixed_window, which takes align, time_zone, charge_denied",
				"max_log_entries: is not a parameter of fixed_window, which takes align, time_zone, charge_denied",
			},
		},
		"new parameters, out of bounds": {
			limiter.Params{
				Algorithm: limiter.LeakyQueue, Limit: 1, Window: hour, MaxWait: hour + time.Millisecond, BurstFor: -time.Second,
			},
			[]string{
				"max_wait: must be whole milliseconds up to 1h0m0s, got 1h0m0.001s",
				"burst_for: must be whole milliseconds up to 1h0m0s, got -1s",
				"burst_for: is not a parameter of leaky_queue, which takes burst, max_wait, charge_denied",
			},
		},
		"wait of microseconds": {
			limiter.Params{
				Algorithm: limiter.SmoothBursty, Limit: 1, Window: hour, MaxWait: -time.Millisecond,
				BurstFor: 1500 * time.Microsecond,
			},
			[]string{
				"max_wait: must be whole milliseconds up to 1h0m0s, got -1ms",
				"burst_for: must be whole milliseconds up to 1h0m0s, got 1.5ms",
			},
		},
		"burst of smooth_bursty": {
			limiter.Params{Algorithm: limiter.SmoothBursty, Limit: 1, Window: hour, Burst: 2},
			[]string{"burst: is not a parameter of smooth_bursty, which takes burst_for, initial, max_wait, max_cost, " +
				"charge_denied"},
		},
		"token bucket's parameters of a funnel": {
			limiter.Params{
				Algorithm: limiter.Funnel, Limit: 1, Window: hour, Initial: limiter.InitialEmpty, Refill: limiter.RefillInterval,
				MaxWait: hour,
			},
			[]string{
				"initial: is not a parameter of funnel, which takes burst, charge_denied",
				"refill: is not a parameter of funnel, which takes burst, charge_denied",
				"max_wait: is not a parameter of funnel, which takes burst, charge_denied",
			},
		},
		"queue's parameters of a token bucket": {
			limiter.Params{
				Algorithm: limiter.TokenBucket, Limit: 1, Window: hour, MaxWait: hour, BurstFor: hour,
				MaxLogEntries: 5,
			},
			[]string{
				"max_wait: is not a parameter of token_bucket, which takes burst, initial, refill, charge_denied",
				"burst_for: is not a parameter of token_bucket, which takes burst, initial, refill, charge_denied",
				"max_log_entries: is not a parameter of token_bucket, which takes burst, initial, refill, charge_denied",
			},
		},
		"concurrency with a burst, and a short lease": {
			limiter.Params{Algorithm: limiter.Concurrency, Limit: 1, Burst: 3, Window: time.Microsecond},
			[]string{
				"window: must be between 1ms and 87600h0m0s (10 years), got 1µs",
				"burst: is not a parameter of concurrency, which takes lease, max_log_entries, charge_denied",
			},
		},
		"more in flight than are remembered": {
			limiter.Params{Algorithm: limiter.Concurrency, Limit: 10_001, Window: hour},
			[]string{"limit: concurrency remembers every request in flight, so it takes at most max_log_entries = 10000, " +
				"got 10001; raise max_log_entries"},
		},
		"more in flight than the given max_log_entries": {
			limiter.Params{Algorithm: limiter.Concurrency, Limit: 6, Window: hour, MaxLogEntries: 5},
			[]string{"limit: concurrency remembers every request in flight, so it takes at most max_log_entries = 5, " +
				"got 6; raise max_log_entries"},
		},
		"queue beyond 53 bits": {
			limiter.Params{Algorithm: limiter.LeakyQueue, Limit: prime, Window: limiter.MaxWindow},
			[]string{"burst: 4294967291 at 4294967291 per 87600h0m0s needs more than 53 bits to count exactly; " +
				"choose a smaller burst or a rate with fewer digits"},
		},
		"smooth_bursty beyond 53 bits": {
			limiter.Params{Algorithm: limiter.SmoothBursty, Limit: 999_999_937, Window: hour, MaxWait: 500 * time.Millisecond},
			[]string{"limit: 999999937 per 1h0m0s needs more than 53 bits to count what one large request owes; " +
				"choose a rate with fewer digits, or a max_wait and a time to save up in whole seconds"},
		},
		"smooth_warming_up's parameters of smooth_bursty, out of bounds": {
			limiter.Params{Algorithm: limiter.SmoothBursty, Limit: 1, Window: hour, WarmUp: 90 * time.Minute, ColdFactor: 100},
			[]string{
				"warm_up: must be whole milliseconds up to 1h0m0s, got 1h30m0s",
				"cold_factor: must be between 1.01 and 100, got 1",
				"warm_up: is not a parameter of smooth_bursty, which takes burst_for, initial, max_wait, max_cost, charge_denied",
				"cold_factor: is not a parameter of smooth_bursty, which takes burst_for, initial, max_wait, max_cost, charge_denied",
			},
		},
		"smooth_warming_up with a burst and a cold_factor above the highest": {
			limiter.Params{Algorithm: limiter.SmoothWarmingUp, Limit: 1, Window: hour, Burst: 3, ColdFactor: 10_050},
			[]string{
				"cold_factor: must be between 1.01 and 100, got 100.5",
				"burst: is not a parameter of smooth_warming_up, which takes warm_up, cold_factor, max_wait, max_cost, charge_denied",
			},
		},
		"smooth_warming_up beyond 53 bits": {
			limiter.Params{
				Algorithm: limiter.SmoothWarmingUp, Limit: 999_999_937, Window: hour, WarmUp: time.Hour + -time.Millisecond,
				ColdFactor: 250,
			},
			[]string{"warm_up: 999999937 per 1h0m0s needs more than 53 bits to count exactly with a warm_up of 59m59.999s " +
				"and a cold_factor " +
				"of 2.5; choose a rate with fewer digits, a shorter warm_up, a cold_factor of 3, or warm_up and max_wait in whole seconds"},
		},
		"batches beyond the horizon": {
			limiter.Params{
				Algorithm: limiter.TokenBucket, Limit: 1, Window: limiter.MaxWindow, Burst: 15, Refill: limiter.RefillInterval,
			},
			[]string{"burst: 15 tokens at 1 per 87600h0m0s take more than 142 years; choose a smaller burst"},
		},
		"align of a funnel": {
			limiter.Params{Algorithm: limiter.Funnel, Limit: 1, Window: hour, Align: limiter.AlignFirstHit},
			[]string{"align: is not a parameter of funnel, which takes burst, charge_denied"},
		},
		"calendar of a funnel": {
			limiter.Params{Algorithm: limiter.Funnel, Limit: 1, Window: hour, Align: limiter.AlignCalendar, TimeZone: time.UTC},
			[]string{
				"align: is not a parameter of funnel, which takes burst, charge_denied",
				"time_zone: is not a parameter of funnel, which takes burst, charge_denied",
			},
		},
		"calendar minutes": {
			limiter.Params{Algorithm: limiter.FixedWindow, Limit: 1, Window: time.Minute, Align: limiter.AlignCalendar},
			[]string{"align: calendar goes with a window of one hour, day, week or year, or of 1, 2, 3, 4 or 6 months of 30 " +
				"days, " +
				"not with 1m0s; use epoch"},
		},
		"time zone of the epoch": {
			limiter.Params{Algorithm: limiter.FixedWindow, Limit: 1, Window: hour, TimeZone: time.UTC},
			[]string{"time_zone: goes with windows of the calendar only; align to the calendar, or leave the time zone out"},
		},
		"long log": {
			limiter.Params{Algorithm: limiter.SlidingLog, Limit: 10_001, Window: hour},
			[]string{"limit: a sliding_log remembers every hit, so it takes at most max_log_entries = 10000 per window, " +
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
			[]string{"limit: 4294967291 in segments of 87600h0m0s need more than 53 bits to count exactly; " +
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

// TestIdentity compares policies whose time zones were loaded one by one, and others.
func TestIdentity(t *testing.T) {
	in := func(zone string) any {
		at, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		return mustPolicy(t, limiter.Params{
			Algorithm: limiter.FixedWindow, Limit: 5, Window: 24 * time.Hour, Align: limiter.AlignCalendar, TimeZone: at,
		}).Identity()
	}
	if in("Europe/Berlin") != in("Europe/Berlin") {
		t.Error("the same policy, loaded twice, is another one")
	}
	if in("Europe/Berlin") == in("America/New_York") || in("Europe/Berlin") == in("Europe/Paris") {
		t.Error("policies of different time zones are the same")
	}
}

// TestTickOfABurst has the largest burst that a clock of microseconds counts exactly, and one more.
func TestTickOfABurst(t *testing.T) {
	const most = (1<<53 - 1) / 3_600_000_000 // a hit is an hour in microseconds
	for burst, tick := range map[int64]int64{most: 1, most + 1: 1000} {
		p := mustPolicy(t, limiter.Params{Algorithm: limiter.Funnel, Limit: 7, Window: time.Hour, Burst: burst})
		if got := p.Args()[1]; got != tick {
			t.Errorf("a burst of %d is counted in ticks of %d us, want %d", burst, got, tick)
		}
	}
}

func TestPolicyTellsWhatItIs(t *testing.T) {
	type told struct {
		Limit, Capacity int64
		Window          time.Duration
		ChargeDenied    limiter.ChargeDenied
		MaxWait         time.Duration
		Refill          limiter.Refill
	}
	for _, c := range []struct {
		in   limiter.Params
		want told
	}{
		{
			limiter.Params{Algorithm: limiter.FixedWindow, Limit: 5, Window: time.Hour},
			told{5, 5, time.Hour, limiter.ChargeFull, 0, 0},
		},
		{
			limiter.Params{Algorithm: limiter.FixedWindow, Limit: 5, Window: time.Hour, ChargeDenied: limiter.ChargeNone},
			told{5, 5, time.Hour, limiter.ChargeNone, 0, 0},
		},
		{
			limiter.Params{Algorithm: limiter.Funnel, Limit: 5, Window: time.Second},
			told{5, 5, time.Second, limiter.ChargeNone, 0, 0},
		},
		{
			limiter.Params{
				Algorithm: limiter.TokenBucket, Limit: 5, Window: time.Second, Burst: 50,
				ChargeDenied: limiter.ChargeRemaining,
			},
			told{5, 50, time.Second, limiter.ChargeRemaining, 0, 0},
		},
		{
			limiter.Params{Algorithm: limiter.SlidingWindow, Limit: 5, Window: time.Second, SegmentCap: 2},
			told{5, 2, time.Second, limiter.ChargeNone, 0, 0},
		},
		{
			limiter.Params{Algorithm: limiter.SlidingLog, Limit: 20_000, Window: time.Second, MaxLogEntries: 20_000},
			told{20_000, 20_000, time.Second, limiter.ChargeNone, 0, 0},
		},
		{
			limiter.Params{Algorithm: limiter.Funnel, Window: time.Second, Burst: 7},
			told{0, 0, time.Second, limiter.ChargeNone, 0, 0},
		},
		{
			limiter.Params{
				Algorithm: limiter.TokenBucket, Limit: 5, Window: time.Second, Burst: 8,
				Refill: limiter.RefillInterval,
			},
			told{5, 8, time.Second, limiter.ChargeNone, 0, limiter.RefillInterval},
		},
		{
			limiter.Params{Algorithm: limiter.SmoothBursty, Limit: 5, Window: time.Second},
			told{5, 6, time.Second, limiter.ChargeNone, 0, 0}, // five in store, and one in advance
		},
		{
			limiter.Params{
				Algorithm: limiter.SmoothBursty, Limit: 3, Window: time.Second, BurstFor: 500 * time.Millisecond,
				MaxWait: time.Second,
			},
			told{3, 5, time.Second, limiter.ChargeNone, time.Second, 0},
		},
		{
			limiter.Params{Algorithm: limiter.LeakyQueue, Limit: 3, Window: time.Second, Burst: 2},
			told{3, 2, time.Second, limiter.ChargeNone, 666_667 * time.Microsecond, 0},
		},
		{
			limiter.Params{Algorithm: limiter.LeakyQueue, Limit: 3, Window: time.Second, MaxWait: 300 * time.Millisecond},
			told{3, 3, time.Second, limiter.ChargeNone, 300 * time.Millisecond, 0},
		},
		{
			limiter.Params{Algorithm: limiter.LeakyQueue, Limit: 3, Window: time.Second, MaxWait: time.Hour},
			told{3, 3, time.Second, limiter.ChargeNone, time.Second, 0},
		},
		{
			limiter.Params{Algorithm: limiter.LeakyQueue, Window: time.Second, MaxWait: time.Hour},
			told{0, 0, time.Second, limiter.ChargeNone, 0, 0},
		},
		{
			limiter.Params{Algorithm: limiter.Concurrency, Limit: 7, Window: time.Minute},
			told{7, 7, time.Minute, limiter.ChargeNone, 0, 0},
		},
		{
			limiter.Params{Algorithm: limiter.SmoothWarmingUp, Limit: 5, Window: time.Second},
			told{5, 1, time.Second, limiter.ChargeNone, 0, 0},
		},
		{
			limiter.Params{Algorithm: limiter.SmoothWarmingUp, Limit: 5, Window: time.Second, MaxWait: time.Second},
			told{5, 6, time.Second, limiter.ChargeNone, time.Second, 0}, // of a warm one
		},
	} {
		p, err := limiter.NewPolicy(c.in)
		if err != nil {
			t.Fatal(err)
		}
		got := told{p.Limit(), p.Capacity(), p.Window(), p.ChargeDenied(), p.MaxWait(), p.Params().Refill}
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
	for _, a := range []limiter.Align{limiter.AlignEpoch, limiter.AlignFirstHit, limiter.AlignCalendar} {
		if got, err := limiter.ParseAlign(a.String()); err != nil || got != a {
			t.Errorf("ParseAlign(%q) = %d, %v", a, got, err)
		}
	}
	for _, i := range []limiter.Initial{limiter.InitialFull, limiter.InitialEmpty} {
		if got, err := limiter.ParseInitial(i.String()); err != nil || got != i {
			t.Errorf("ParseInitial(%q) = %d, %v", i, got, err)
		}
	}
	for _, r := range []limiter.Refill{limiter.RefillGreedy, limiter.RefillInterval} {
		if got, err := limiter.ParseRefill(r.String()); err != nil || got != r {
			t.Errorf("ParseRefill(%q) = %d, %v", r, got, err)
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
	const sec, hour = time.Second, time.Hour
	seed := uint64(0)
	add := func(in limiter.Params) {
		seed++
		flags := uint8(in.Align) | uint8(in.Initial)<<4 | uint8(in.Refill)<<5
		if in.TimeZone != nil {
			flags |= 1 << 6
		}
		for charge := range uint8(4) {
			f.Add(uint8(in.Algorithm), charge, uint8(in.Oldest), flags, in.Limit, int64(in.Window), in.Burst, in.Segments,
				in.SegmentCap,
				int64(in.MaxWait), int64(in.BurstFor), int64(in.WarmUp), in.ColdFactor, seed)
		}
	}
	for _, a := range append([]limiter.Algorithm{0}, algorithms...) {
		add(limiter.Params{Algorithm: a, Limit: 1, Window: limiter.MaxWindow})
		add(limiter.Params{Algorithm: a, Limit: limiter.MaxLimit, Window: limiter.MinWindow})
		add(limiter.Params{Algorithm: a, Limit: 10_000, Window: sec})
		add(limiter.Params{Algorithm: a, Window: sec})
	}
	for _, a := range []limiter.Algorithm{limiter.Funnel, limiter.TokenBucket, limiter.LeakyQueue} {
		add(limiter.Params{Algorithm: a, Limit: 999_999_937, Window: hour, Burst: 100_000})
		add(limiter.Params{Algorithm: a, Limit: 1, Window: limiter.MaxWindow, Burst: 14})
		add(limiter.Params{Algorithm: a, Limit: limiter.MaxLimit, Window: sec, Burst: limiter.MaxLimit})
	}
	for _, in := range []limiter.Params{
		{Limit: 3, Window: sec, Burst: 7},
		{Limit: limiter.MaxLimit, Window: limiter.MinWindow, Burst: limiter.MaxLimit},
		{Limit: 1, Window: limiter.MaxWindow, Burst: 14},
	} {
		in.Algorithm = limiter.TokenBucket
		for in.Initial = limiter.InitialFull; in.Initial <= limiter.InitialEmpty; in.Initial++ {
			for in.Refill = limiter.RefillGreedy; in.Refill <= limiter.RefillInterval; in.Refill++ {
				add(in)
			}
		}
	}
	add(limiter.Params{Algorithm: limiter.FixedWindow, Align: limiter.AlignFirstHit, Limit: 3, Window: sec})
	add(limiter.Params{
		Algorithm: limiter.SlidingWindow, Oldest: limiter.OldestFull, Limit: 10, Window: 10 * sec,
		Segments: 3, SegmentCap: 5,
	})
	add(limiter.Params{
		Algorithm: limiter.SlidingWindow, Oldest: limiter.OldestNone, Limit: limiter.MaxLimit, Window: limiter.MinWindow,
		Segments: 1000, SegmentCap: 5,
	})
	add(limiter.Params{Algorithm: limiter.SlidingWindow, Limit: 10, Window: 10 * sec, Segments: 1})
	add(limiter.Params{
		Algorithm: limiter.LeakyQueue, Limit: 999_999_937, Window: hour, Burst: 100_000,
		MaxWait: time.Millisecond,
	})
	add(limiter.Params{Algorithm: limiter.LeakyQueue, Limit: 3, Window: sec, Burst: 2, MaxWait: hour})
	add(limiter.Params{
		Algorithm: limiter.SmoothBursty, Limit: 7, Window: 3 * sec, MaxWait: 500 * time.Millisecond,
		BurstFor: hour,
	})
	add(limiter.Params{Algorithm: limiter.SmoothBursty, Limit: 999_999_937, Window: hour})
	lordHowe := zone(f, "Australia/Lord_Howe")
	for _, window := range calendarWindows {
		add(limiter.Params{Algorithm: limiter.FixedWindow, Align: limiter.AlignCalendar, Limit: 3, Window: window})
		add(limiter.Params{
			Algorithm: limiter.FixedWindow, Align: limiter.AlignCalendar, Limit: 3, Window: window,
			TimeZone: lordHowe,
		})
	}
	for _, in := range []limiter.Params{
		{Limit: 9_973, Window: sec, WarmUp: hour, ColdFactor: limiter.MaxColdFactor, MaxWait: sec},
		{Limit: 999_999_937, Window: hour, WarmUp: 20 * sec, MaxWait: hour},
		{Limit: 3, Window: sec, WarmUp: time.Millisecond, ColdFactor: 101, MaxWait: hour},
		{Limit: 1, Window: limiter.MaxWindow, WarmUp: hour},
	} {
		in.Algorithm = limiter.SmoothWarmingUp
		add(in)
	}
	f.Fuzz(func(t *testing.T, algorithm, charge, oldest, flags uint8,
		limit, window, burst, segments, segmentCap, maxWait, burstFor, warmUp, coldFactor int64, seed uint64,
	) {
		in := limiter.Params{
			Algorithm: limiter.Algorithm(algorithm), ChargeDenied: limiter.ChargeDenied(charge), Oldest: limiter.Oldest(oldest),
			Align: limiter.Align(flags & 0xf), Initial: limiter.Initial(flags >> 4 & 1), Refill: limiter.Refill(flags >> 5 & 1),
			Limit: limit, Window: time.Duration(window), Burst: burst, Segments: segments, SegmentCap: segmentCap,
			MaxWait: time.Duration(maxWait), BurstFor: time.Duration(burstFor),
			WarmUp: time.Duration(warmUp), ColdFactor: coldFactor,
		}
		if flags>>6&1 == 1 {
			in.TimeZone = lordHowe
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

// partOf is the part of a tick that a funnel's state has in B, below how far it was ahead.
func partOf(s limiter.State) int64 { return s.B & (1<<32 - 1) }

// extremeSteps runs costs and clocks of all sizes, now and then under another policy of the algorithm, and checks
// that every number stays in its bounds.
func extremeSteps(t *testing.T, in limiter.Params, p *limiter.Policy, seed uint64) {
	t.Helper()
	other, err := limiter.NewPolicy(limiter.Params{
		Algorithm: in.Algorithm, Limit: 10, Window: 10 * time.Second,
		Refill: in.Refill,
	})
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
	costs := []int64{
		1, 1, 2, 0, -1, p.Capacity(), p.Capacity() + 1, limiter.MaxHits, limiter.MaxHits, limiter.MaxHits,
		-limiter.MaxHits,
	}
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
		most := with.Capacity()
		if in.Algorithm == limiter.LeakyQueue {
			most++ // one departs, the others wait
		}
		if d.Wait < 0 || d.Wait > with.MaxWait() || d.Wait > 0 && (n <= 0 || !d.Allowed) {
			t.Fatalf("%+v, seed %d: cost %d at %d: %+v, where the longest wait is %s", in, seed, n, now, d, with.MaxWait())
		}
		if d.Remaining < 0 || d.Remaining > most || d.RetryAfter < 0 || d.ResetAfter < 0 || d.ResetAfter == math.MaxInt64 {
			t.Fatalf("%+v, seed %d: cost %d at %d: %+v", in, seed, n, now, d)
		}
		b := s.B
		if len(other.Args()) > 10 { // a funnel, or one that warms up: B is two numbers
			b = partOf(s)
		}
		for _, v := range append([]int64{s.A, b}, s.List...) {
			if v < 0 || v >= exact {
				t.Fatalf("%+v, seed %d: cost %d at %d: a number of the state is %d", in, seed, n, now, v)
			}
		}
	}
}
