package rlqs

import (
	"math"
	"slices"
	"time"
)

// divide returns what each of several clients gets of total, in requests a second, by what they want.
//
// Where they want more than total, the shares are max-min fair: none can be raised without lowering one that is not
// larger. Where they want less, each gets what it wants, and the rest is divided: half of it equally, so that a client
// that wants more next time already has some of it, and half in proportion to what they want.
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

// waterLevel returns the level to which each want is cut, so that together they are total.
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

// A token bucket has its tokens for a minute, or for longestFill where these would be fewer than minPerFill. An Envoy
// refills continuously, so only rounding depends on that: it loses less than one part in minPerFill.
const (
	longestFill = 100 * 24 * time.Hour
	minPerFill  = 1000
	// slowest is the lowest rate of a token bucket in requests a second, and a little more, since rates are rounded down.
	slowest = 1.001 * float64(time.Second) / float64(longestFill)
)

// roundDown returns the token bucket for a rate in requests a second, at least slowest, and a burst. Its rate is never
// higher.
//
// An Envoy keeps a bucket whose tokens are those of the last assignment, whatever its fill. So one of them changes
// then.
func roundDown(rate, burst float64, last Assignment) Assignment {
	whole := func(tokens float64) uint32 { return uint32(min(max(tokens, 1), math.MaxUint32)) } // that a message can carry
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

// rate is how many tokens a token bucket gets in a second.
func (a *Assignment) rate() float64 {
	if a.Strategy != TokenBucket || a.Fill <= 0 {
		return 0
	}
	return float64(a.PerFill) / a.Fill.Seconds()
}
