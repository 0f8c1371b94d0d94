package rlqs

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

func TestMain(m *testing.M) { casetest.Main(m, 200) }

// What nobody wants is divided half equally and half by what clients want. TestSharesAreMaxMinFair shows the rest.
func TestSlackIsDivided(t *testing.T) {
	for want, wants := range map[string][]float64{
		"[]": nil, "[675 325]": {300, 100}, "[500 500]": {0, 0}, "[773 57 57 57 57]": {600, 20, 20, 20, 20},
	} {
		if got := fmt.Sprintf("%.0f", divide(wants, 1000)); got != want {
			t.Errorf("of 1000, clients that want %v get %s, want %s", wants, got, want)
		}
	}
}

func drawWants(rt *rapid.T) (wants []float64, total float64) {
	rate := rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(0, 10), rapid.Float64Range(0, 1e6))
	return rapid.SliceOfN(rate, 1, 40).Draw(rt, "wants"), rate.Draw(rt, "total")
}

// Shares are never more than the total together. A share that is less than its client wants is as large as any other:
// none can rise without a smaller one sinking. If there is one, or the total is more than all want, nothing is left.
func TestSharesAreMaxMinFair(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		wants, total := drawWants(rt)
		shares := divide(wants, total)
		sum, wanted, largest, isShort := 0.0, 0.0, 0.0, false
		for i, s := range shares {
			sum, wanted, largest = sum+s, wanted+wants[i], max(largest, s)
			isShort = isShort || s < wants[i]*(1-1e-9)
		}
		for i, s := range shares {
			if s < 0 || s < min(wants[i], largest)*(1-1e-9) {
				rt.Fatalf("client %d wants %g and gets %g, another one gets %g", i, wants[i], s, largest)
			}
		}
		if sum > total*(1+1e-9) || (isShort || wanted < total) && sum < total*(1-1e-9) || isShort && wanted < total*(1-1e-9) {
			rt.Fatalf("shares of %g are %g together, %g are wanted, some get less: %t", total, sum, wanted, isShort)
		}
	})
}

func TestRoundDownIsNeverUp(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		draw := func(name string) (rate, burst float64) {
			magnitude := rapid.Float64Range(-8, 11).Draw(rt, name)
			return math.Pow(10, magnitude), rapid.Float64Range(0, 1e11).Draw(rt, name+" burst")
		}
		rate, burst := draw("last")
		last := roundDown(max(rate, slowest), burst, Assignment{})
		rate, burst = draw("next")
		rate = max(rate, slowest)
		a := roundDown(rate, burst, last)
		if a.rate() > rate || float64(a.MaxTokens) > max(1, burst) || a.MaxTokens == 0 {
			rt.Fatalf("%g/s with a burst of %g became %+v", rate, burst, a)
		}
		if a.Fill%time.Second != 0 || a.Fill < time.Second || a.PerFill == 0 {
			rt.Fatalf("no Envoy can fill as %+v says", a)
		}
		if rate > 1 && rate < 7e7 && a.rate() < rate*(1-2./minPerFill) {
			rt.Fatalf("%g/s became %g/s", rate, a.rate())
		}
		if a.Fill != last.Fill && a.PerFill == last.PerFill && a.MaxTokens == last.MaxTokens {
			rt.Fatalf("an Envoy takes %+v for %+v", a, last)
		}
	})
}
