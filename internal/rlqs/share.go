package rlqs

import (
	"math"
	"slices"
	"time"
)

// divide returns each client's share of total, in requests per second, according to wants.
//
// If the sum of wants exceeds total, the shares are max-min fair: no share can rise without lowering a share that is
// not larger. Otherwise each client gets its want plus a part of the rest. Half of the rest is divided equally, so that
// a client with a rising demand has a reserve, and half in proportion to wants.
func divide(wants []float64, total float64) []float64 {
	shares := make([]float64, 0, len(wants))
	sum := 0.0
	for _, w := range wants {
		sum += w
	}
	if sum >= total {
		level := waterLevel(wants, total)
		for _, w := range wants {
			shares = append(shares, min(w, level))
		}
		return shares
	}
	equal, byWant := (total-sum)/float64(len(wants)), 0.0
	if sum > 0 {
		equal /= 2
		byWant = (total - sum) / 2 / sum
	}
	for _, w := range wants {
		shares = append(shares, w+equal+w*byWant)
	}
	return shares
}

// waterLevel returns the level at which to cut each want so that the sum is total.
func waterLevel(wants []float64, total float64) float64 {
	sorted := slices.Clone(wants)
	slices.Sort(sorted)
	for i, w := range sorted {
		if level := total / float64(len(sorted)-i); w >= level {
			return level
		}
		total -= w
	}
	return math.Inf(1)
}

// A token bucket's fill takes a minute, or longestFill if it would have fewer than minPerFill tokens. An Envoy refills
// continuously, so only the rounding error depends on the fill, and is less than 1/minPerFill.
const (
	longestFill = 100 * 24 * time.Hour
	minPerFill  = 1000
	// slowest is the minimum rate of a token bucket in requests per second, with a margin because rates are rounded down.
	slowest = 1.001 * float64(time.Second) / float64(longestFill)
)

// roundDown returns a token bucket for a burst and a rate in requests per second, at least slowest. The bucket's rate
// is not higher.
//
// An Envoy keeps a bucket if the numbers of tokens equal the last assignment's, even if the fill differs. In this case
// roundDown changes a number of tokens.
func roundDown(rate, burst float64, last Assignment) Assignment {
	whole := func(tokens float64) uint32 { return uint32(min(max(tokens, 1), math.MaxUint32)) } // the field's range
	a := Assignment{Strategy: TokenBucket, MaxTokens: whole(burst), Fill: time.Minute}
	if rate*a.Fill.Seconds() < minPerFill {
		a.Fill = longestFill
	}
	a.PerFill = whole(rate * a.Fill.Seconds())
	if a.Fill != last.Fill && a.PerFill == last.PerFill && a.MaxTokens == last.MaxTokens {
		a.PerFill--
	}
	return a
}

// rate returns the tokens per second of a token bucket.
func (a *Assignment) rate() float64 {
	if a.Strategy != TokenBucket || a.Fill <= 0 {
		return 0
	}
	return float64(a.PerFill) / a.Fill.Seconds()
}
