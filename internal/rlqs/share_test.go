package rlqs

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/test/longtest"
)

func TestMain(m *testing.M) { longtest.Main(m, 200) }

func TestDivide(t *testing.T) {
	for name, c := range map[string]struct {
		wants []float64
		total float64
		want  []float64
	}{
		"nobody":                    {nil, 1000, nil},
		"nothing to divide":         {[]float64{5, 0}, 0, []float64{0, 0}},
		"all over":                  {[]float64{500, 500, 500, 500}, 1000, []float64{250, 250, 250, 250}},
		"uneven over":               {[]float64{2000, 100, 50, 900}, 1000, []float64{425, 100, 50, 425}},
		"exactly met":               {[]float64{900, 100}, 1000, []float64{900, 100}},
		"slack, half of it by want": {[]float64{300, 100}, 1000, []float64{675, 325}},
		"nobody wants anything":     {[]float64{0, 0}, 1000, []float64{500, 500}},
		"the hot spot is elsewhere": {[]float64{600, 20, 20, 20, 20}, 1000, []float64{773.2, 56.7, 56.7, 56.7, 56.7}},
	} {
		t.Run(name, func(t *testing.T) {
			got := divide(c.wants, c.total)
			if diff := cmp.Diff(c.want, got, cmpopts.EquateApprox(0, 0.5), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("divide(%v, %g) (-want +got):\n%s", c.wants, c.total, diff)
			}
		})
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
