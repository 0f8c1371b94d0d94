package limiter

import (
	"math/bits"

	"github.com/weir-ratelimit/weir/internal/step"
)

// A funnel's B holds two numbers: the part of a tick in its lower 32 bits, and above them the span, which is how far A
// was ahead of the time at which it was written. A span is rounded up to 26 significant bits, so that the time at which
// a state was written is never taken for later than it was.
const (
	partBits = 32
	spanBits = 26
)

// withSpan is B of a part of a tick and a span in microseconds.
func withSpan(part, span int64) int64 {
	shift := max(0, bits.Len64(uint64(span))-spanBits) //nolint:gosec // not negative
	digits := (span + 1<<shift - 1) >> shift
	if digits>>spanBits != 0 { // rounded up to one more digit
		digits, shift = digits>>1, shift+1
	}
	return (int64(shift)<<spanBits|digits)<<partBits | part
}

// partOf is the part of a tick that a funnel's B holds.
func partOf(s *step.State) int64 { return s.B & (1<<partBits - 1) }

// spanOf is the span that a funnel's B holds, in a form that can be compared.
func spanOf(s *step.State) int64 { return s.B >> partBits }

// writtenAt returns when a funnel's state was written, in microseconds since the Unix epoch, or less than 2^-25 of the
// span before.
func writtenAt(s *step.State) int64 {
	span := spanOf(s)
	return s.A - span&(1<<spanBits-1)<<(span>>spanBits)
}
