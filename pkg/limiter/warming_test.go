package limiter_test

import (
	"fmt"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// TestWarmUpTakesAsLongAsItSays: under requests without a pause the distance from one to the next falls from nearly
// cold_factor times the interval to the interval itself, evenly, and is there after warm_up, when what is dearer was
// spent: 2*warm_up/(1+cold_factor) intervals. After that it stays, and after a pause of warm_up it begins again.
func TestWarmUpTakesAsLongAsItSays(t *testing.T) {
	const interval = 20_000 // us
	for _, c := range []struct {
		factor, permits int64
		warmUp          time.Duration
	}{{300, 250, 10 * time.Second}, {200, 250, 7500 * time.Millisecond}, {150, 240, 6 * time.Second}, {
		900, 72,
		7200 * time.Millisecond,
	}} {
		t.Run(fmt.Sprintf("%d in %s", c.factor, c.warmUp), func(t *testing.T) {
			p := mustPolicy(t, limiter.Params{
				Algorithm: limiter.SmoothWarmingUp, Limit: 50, Window: time.Second, WarmUp: c.warmUp, ColdFactor: c.factor,
			})
			var s storekit.State
			now := int64(epoch)
			for range 2 {
				start, drop := now, float64(interval*(c.factor-100))/100/float64(c.permits)
				for i := range 3 * c.permits {
					var d limiter.Decision
					if s, d = storekit.Step(p, s, now, 1); !d.Allowed {
						t.Fatalf("request %d is denied at %d", i, now-start)
					}
					_, d = storekit.Step(p, s, now, 1)
					want := interval + drop*(float64(max(0, c.permits-i))-0.5)
					if i >= c.permits {
						want = interval
					}
					if got := float64(d.RetryAfter.Microseconds()); got < want-2 || got > want+2 {
						t.Fatalf("after request %d, at %d us: the next one is %.0f us later, want %.1f", i, now-start, got, want)
					}
					now += d.RetryAfter.Microseconds()
					if late := now - start - c.warmUp.Microseconds(); i == c.permits-1 && (late < 0 || late > c.permits) {
						t.Errorf("warm after %d us, want %s", now-start, c.warmUp)
					}
				}
				now += 2 * c.warmUp.Microseconds()
			}
		})
	}
}

// TestCostsOfLargeNumbers: where the squares of the definition do not fit into 53 bits, what a request costs beyond the
// rate is as close to Guava's as docs/algorithms/smooth-warming-up.md says: to within a 2^-24th of what the whole
// warm-up costs, and a unit.
func TestCostsOfLargeNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := limiter.Params{
			Algorithm: limiter.SmoothWarmingUp,
			Limit: rapid.OneOf(rapid.Int64Range(1, 100_000), rapid.SampledFrom([]int64{10_000_000, 999_983})).Draw(t,
				"limit"),
			Window: rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second, time.Minute}).Draw(t, "window"),
			WarmUp: time.Duration(rapid.Int64Range(1, 3_600_000).Draw(t, "warm_up")) * time.Millisecond,
			ColdFactor: rapid.OneOf(rapid.SampledFrom([]int64{300, 200}), rapid.Int64Range(101, step.MaxColdFactor)).Draw(t,
				"cold_factor"),
			MaxCost: step.MaxCost,
		}
		p, err := limiter.NewPolicy(in)
		if err != nil {
			return // TestUsualRatesFit
		}
		o := newWarmOracle(in, p)
		args := p.Core().Args()
		full, permit := args[8], args[9]
		now := int64(epoch - epoch%1_000_000)
		stored := rapid.Int64Range(0, full).Draw(t, "stored")
		n := rapid.Int64Range(1, min(step.MaxCost, full/permit+1)).Draw(t, "n")
		s, _ := storekit.Step(p, storekit.State{A: now, List: []int64{stored, full}}, now, n)
		got := new(big.Rat).Add(rat(s.A-now), new(big.Rat).Mul(rat(partOf(s)), o.unit))

		permits := func(grains int64) *big.Rat { return new(big.Rat).Mul(o.most, big.NewRat(grains, full)) }
		above := func(permits *big.Rat) *big.Rat { return later(permits.Sub(permits, o.threshold), o.zero) }
		fine := big.NewRat(1, 1<<40)
		want := times(o.interval, n)
		want.Add(want, o.triangle(above(permits(stored)), fine))
		want.Sub(want, o.triangle(above(later(new(big.Rat).Sub(permits(stored), rat(n)), o.zero)), fine))
		allowed := o.triangle(above(permits(full)), fine)
		allowed.Mul(allowed, big.NewRat(1, 1<<24)).Add(allowed, o.unit)
		if off := new(big.Rat).Sub(got, want); off.Abs(off).Cmp(allowed) > 0 {
			t.Fatalf("%+v: %d hits with %d of %d in store cost %s us, want %s, give or take %s", in, n, stored, full,
				got.FloatString(6), want.FloatString(6), allowed.FloatString(6))
		}
	})
}

// TestUsualRatesFit: what people write is accepted, and in microseconds.
func TestUsualRatesFit(t *testing.T) {
	for _, limit := range []int64{1, 3, 7, 10, 100, 333, 1_000, 9_973, 10_000, 999_983, 1_000_000, 10_000_000} {
		for _, warmUp := range []time.Duration{
			time.Millisecond, time.Second, 10 * time.Second, 90 * time.Second,
			10 * time.Minute,
		} {
			for _, factor := range []int64{120, 150, 200, 250, 300, 400, 500, 1000} {
				for _, window := range []time.Duration{time.Second, time.Minute, time.Hour} {
					in := limiter.Params{
						Algorithm: limiter.SmoothWarmingUp, Limit: limit, Window: window, WarmUp: warmUp,
						ColdFactor: factor,
					}
					p, err := limiter.NewPolicy(in)
					if limit == 999_983 && window == time.Hour && warmUp < time.Second {
						continue // what MaxHits of them owe is counted in seconds
					}
					if err != nil {
						t.Errorf("%+v: %v", in, err)
						continue
					}
					if tick := p.Core().Args()[1]; tick != 1 && window == time.Second && limit < 10_000 {
						t.Errorf("%+v counts in %d us", in, tick)
					}
				}
			}
		}
	}
}

// TestHighRatesAreNotRounded: ten million a second are ten million, one by one, though a microsecond has ten of them.
func TestHighRatesAreNotRounded(t *testing.T) {
	p := mustPolicy(t, limiter.Params{
		Algorithm: limiter.SmoothWarmingUp, Limit: 10_000_000, Window: time.Second, WarmUp: time.Second,
		MaxWait: time.Millisecond,
	})
	warm := storekit.State{A: epoch, List: []int64{0, p.Core().Args()[8]}}
	admitted := int64(0)
	for now := int64(epoch); now < epoch+5_000; now += 7 {
		for {
			next, d := storekit.Step(p, warm, now, 1)
			if !d.Allowed {
				break
			}
			warm = next
			if admitted++; admitted > 1_000_000 {
				t.Fatalf("no end of hits passes at %d", now)
			}
		}
	}
	if want := int64(10*(1_000+4_998) + 1); admitted != want { // the longest wait, the time until the last look, and one
		t.Errorf("%d hits passed or wait, want %d", admitted, want)
	}
}

// TestWarmDebtStopsGrowing at the highest level, from where it is paid back.
func TestWarmDebtStopsGrowing(t *testing.T) {
	p := mustPolicy(t, limiter.Params{
		Algorithm: limiter.SmoothWarmingUp, Limit: 1, Window: 365 * 24 * time.Hour, WarmUp: time.Hour,
		ChargeDenied: limiter.ChargeFull,
		MaxCost:      step.MaxCost,
	})
	highest := time.Duration(p.Core().Args()[5]) * time.Microsecond
	if highest < 140*365*24*time.Hour {
		t.Errorf("debts of up to %s are counted", highest)
	}
	var s storekit.State
	for i := range int64(3) {
		s, _ = storekit.Step(p, s, epoch+i, step.MaxCost)
		if s.A != epoch+i+highest.Microseconds() {
			t.Errorf("after %d big requests, the next one is free to go after %d us, want %s", i+1, s.A-epoch-i, highest)
		}
	}
	s, _ = storekit.Step(p, s, epoch+2, -1)
	if want := epoch + 2 + (highest - p.Window()).Microseconds(); s.A != want {
		t.Errorf("after one was refunded, the next one is free to go at %d, want %d", s.A, want)
	}
}
