package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestQuantiles compares with the quantiles of the sorted values themselves.
func TestQuantiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	draws := map[string]func() time.Duration{
		"constant":  func() time.Duration { return 163 * time.Microsecond },
		"small":     func() time.Duration { return time.Duration(rng.IntN(300)) },
		"uniform":   func() time.Duration { return time.Duration(rng.IntN(int(10 * time.Millisecond))) },
		"latencies": func() time.Duration { return time.Duration(math.Exp(12 + 2*rng.NormFloat64())) },
	}
	for name, draw := range draws {
		for _, n := range []int{1, 2, 10, 1000, 20_000} {
			var whole, half histogram
			values := make([]time.Duration, n)
			for i := range values {
				values[i] = draw()
				if i%2 == 0 {
					whole.add(values[i])
				} else {
					half.add(values[i])
				}
			}
			whole.merge(&half)
			slices.Sort(values)
			for _, q := range []float64{0, 0.5, 0.9, 0.99, 0.999, 1} {
				want := values[max(0, int(math.Ceil(q*float64(n)))-1)]
				got := whole.quantile(q)
				if diff := math.Abs(float64(got - want)); diff > float64(want)/128+1 {
					t.Errorf("%s, %d values: quantile %g is %v, want %v", name, n, q, got, want)
				}
			}
		}
	}
}
