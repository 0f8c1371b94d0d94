package limiter_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

func TestNewPolicySaysWhatIsWrong(t *testing.T) {
	for _, c := range casetest.Table[struct {
		Name, Algorithm string
		In              limiter.Params
		Want            []string
	}](t, "testdata/wrong_policies.yaml") {
		t.Run(c.Name, func(t *testing.T) {
			if c.Algorithm != "" {
				c.In.Algorithm, _ = limiter.ParseAlgorithm(c.Algorithm) // the error would name it
			}
			c.Want[0] = strings.Replace(c.Want[0], "ALGORITHMS", strings.Join(step.Names(limiter.Algorithms()), ", "), 1)
			p, err := limiter.NewPolicy(c.In)
			if err == nil {
				t.Fatalf("NewPolicy(%+v) accepted it: %+v", c.In, p)
			}
			if diff := cmp.Diff(c.Want, strings.Split(err.Error(), "\n")); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			var param *limiter.ParamError
			if !errors.As(err, &param) || !strings.HasPrefix(c.Want[0], param.Param+": ") {
				t.Errorf("the error names %+v first, want that of %q", param, c.Want[0])
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
		return limit.Identity(mustPolicy(t, limiter.Params{
			Algorithm: limiter.FixedWindow, Limit: 5, Window: 24 * time.Hour, Align: limiter.AlignCalendar, TimeZone: at,
		}))
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
		if got := p.Core().Args()[1]; got != tick {
			t.Errorf("a burst of %d is counted in ticks of %d us, want %d", burst, got, tick)
		}
	}
}

func TestNames(t *testing.T) {
	for _, a := range algorithms {
		if got, err := limiter.ParseAlgorithm(a.String()); err != nil || got != a {
			t.Errorf("parsing %q: %v, %v", a, got, err)
		}
	}
	for _, name := range []string{"", "half"} {
		got, err := limiter.ParseAlgorithm(name)
		if err == nil || !strings.Contains(err.Error(), "use one of fixed_window, ") {
			t.Errorf("parsing %q: %v, %v", name, got, err)
		}
	}
	for want, v := range map[string]fmt.Stringer{
		"remaining": limiter.ChargeRemaining, "shadow": limiter.Shadow,
	} {
		if v.String() != want {
			t.Errorf("%v is not called %s", v, want)
		}
	}
	for _, v := range []fmt.Stringer{limiter.ChargeDefault, limiter.ChargeDenied(9), limiter.Mode(9)} {
		if v.String() != "" {
			t.Errorf("%#v is called %s", v, v)
		}
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
		flags := uint8(in.Align)
		for bit, isSet := range map[uint8]bool{1 << 4: in.StartsEmpty, 1 << 5: in.RefillsAtOnce} {
			if isSet {
				flags |= bit
			}
		}
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
		add(limiter.Params{Algorithm: a, Limit: 1, Window: step.MaxWindow})
		add(limiter.Params{Algorithm: a, Limit: step.MaxLimit, Window: step.MinWindow})
		add(limiter.Params{Algorithm: a, Limit: 10_000, Window: sec})
		add(limiter.Params{Algorithm: a, DenyAll: true, Window: sec})
	}
	for _, a := range []limiter.Algorithm{limiter.Funnel, limiter.TokenBucket, limiter.LeakyQueue} {
		add(limiter.Params{Algorithm: a, Limit: 999_999_937, Window: hour, Burst: 100_000})
		add(limiter.Params{Algorithm: a, Limit: 1, Window: step.MaxWindow, Burst: 14})
		add(limiter.Params{Algorithm: a, Limit: step.MaxLimit, Window: sec, Burst: step.MaxLimit})
	}
	for _, in := range []limiter.Params{
		{Limit: 3, Window: sec, Burst: 7},
		{Limit: step.MaxLimit, Window: step.MinWindow, Burst: step.MaxLimit},
		{Limit: 1, Window: step.MaxWindow, Burst: 14},
	} {
		in.Algorithm = limiter.TokenBucket
		for _, in.StartsEmpty = range []bool{false, true} {
			for _, in.RefillsAtOnce = range []bool{false, true} {
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
		Algorithm: limiter.SlidingWindow, Oldest: limiter.OldestNone, Limit: step.MaxLimit, Window: step.MinWindow,
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
		{Limit: 9_973, Window: sec, WarmUp: hour, ColdFactor: step.MaxColdFactor, MaxWait: sec},
		{Limit: 999_999_937, Window: hour, WarmUp: 20 * sec, MaxWait: hour},
		{Limit: 3, Window: sec, WarmUp: time.Millisecond, ColdFactor: 101, MaxWait: hour},
		{Limit: 1, Window: step.MaxWindow, WarmUp: hour},
	} {
		in.Algorithm = limiter.SmoothWarmingUp
		add(in)
	}
	f.Fuzz(func(t *testing.T, algorithm, charge, oldest, flags uint8,
		limit, window, burst, segments, segmentCap, maxWait, burstFor, warmUp, coldFactor int64, seed uint64,
	) {
		in := limiter.Params{
			Algorithm: limiter.Algorithm(algorithm), ChargeDenied: limiter.ChargeDenied(charge), Oldest: limiter.Oldest(oldest),
			Align: limiter.Align(flags & 0xf), StartsEmpty: flags>>4&1 != 0, RefillsAtOnce: flags>>5&1 != 0, DenyAll: limit == 0,
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
		for i, arg := range p.Core().Args() {
			if arg < 0 || arg >= exact {
				t.Fatalf("%+v: number %d is %d", in, i, arg)
			}
		}
		extremeSteps(t, in, p, seed)
	})
}

// partOf returns the part of a tick in the B of a meter's state.
func partOf(s storekit.State) int64 { return s.B & (1<<32 - 1) }

// extremeSteps runs costs and clocks of all sizes, now and then under another policy of the algorithm, and checks
// that every number stays in its bounds.
func extremeSteps(t *testing.T, in limiter.Params, p *limiter.Policy, seed uint64) {
	t.Helper()
	other, err := limiter.NewPolicy(limiter.Params{
		Algorithm: in.Algorithm, Limit: 10, Window: 10 * time.Second,
		RefillsAtOnce: in.RefillsAtOnce,
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
	var s storekit.State
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
		s, d = storekit.Step(with, s, now, n)
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
		if len(other.Core().Args()) > 10 { // a funnel, or one that warms up: B is two numbers
			b = partOf(s)
		}
		for _, v := range append([]int64{s.A, b}, s.List...) {
			if v < 0 || v >= exact {
				t.Fatalf("%+v, seed %d: cost %d at %d: a number of the state is %d", in, seed, n, now, v)
			}
		}
	}
}
