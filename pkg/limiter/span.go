package limiter

import (
	"math/bits"

	"github.com/weir-ratelimit/weir/internal/step"
)

// A meter's B holds two numbers: the part of a tick in its lower 32 bits, and above them the span, which is how far A
// was ahead of the time when the state was written. A span is rounded up to 26 significant bits, so that the time of
// writing is never read as later than it was.
const (
	partBits = 32
	spanBits = 26
)

// withSpan packs a part of a tick and a span in microseconds into a State's B.
func withSpan(part, span int64) int64 {
	shift := max(0, bits.Len64(uint64(span))-spanBits) //nolint:gosec // not negative
	digits := (span + 1<<shift - 1) >> shift
	if digits>>spanBits != 0 { // rounding up has added a bit
		digits, shift = digits>>1, shift+1
	}
	return (int64(shift)<<spanBits|digits)<<partBits | part
}

// partOf returns the part of a tick in a meter's B.
func partOf(s *step.State) int64 { return s.B & (1<<partBits - 1) }

// spanOf returns the span in a meter's B, in a form that can be compared.
func spanOf(s *step.State) int64 { return s.B >> partBits }

// writtenAt returns when a meter's state was written, in microseconds since the Unix epoch, or up to 2^-25 span
// earlier.
func writtenAt(s *step.State) int64 {
	span := spanOf(s)
	return s.A - span&(1<<spanBits-1)<<(span>>spanBits)
}
