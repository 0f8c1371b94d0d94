package main

import (
	"math"
	"time"
)

// precision is how many of a duration's bits below its highest choose its bucket: buckets are at most 1/128 of
// their value wide.
const precision = 7

const (
	octaves = 36 // up to 68 s, more than any request may take
	one     = 1023 << precision
)

// histogram counts durations in buckets of equal relative width. It is written here rather than imported because
// it is these few lines, and small enough that each of 64 workers has its own in its cache.
type histogram struct {
	counts [octaves << precision]uint32
	total  uint64
}

// bucket is the number of d's bucket: the exponent and the highest bits of the fraction of d as a float64.
func bucket(d time.Duration) int {
	b := int(math.Float64bits(float64(max(d, 1)))>>(52-precision)) - one
	return min(b, octaves<<precision-1)
}

// middle is the duration in the middle of bucket i.
func middle(i int) time.Duration {
	lo := math.Float64frombits(uint64(i+one) << (52 - precision))   //nolint:gosec // not negative
	hi := math.Float64frombits(uint64(i+one+1) << (52 - precision)) //nolint:gosec // not negative
	return time.Duration((lo + hi) / 2)
}

func (h *histogram) add(d time.Duration) {
	h.counts[bucket(d)]++
	h.total++
}

func (h *histogram) merge(other *histogram) {
	for i, n := range other.counts {
		h.counts[i] += n
	}
	h.total += other.total
}

// quantile is the smallest duration that a share q of all does not exceed, to a bucket's width; 0 if there are none.
func (h *histogram) quantile(q float64) time.Duration {
	if h.total == 0 {
		return 0
	}
	rank := max(1, uint64(math.Ceil(q*float64(h.total))))
	var seen uint64
	for i, n := range h.counts {
		if seen += uint64(n); seen >= rank {
			return middle(i)
		}
	}
	return 0 // unreachable: the counts add up to total
}
