package limiter

import (
	"math/bits"
	"time"
)

// What a step does about a clock that was put back, and about a state that no clock explains; see docs/adr/0032.

// grace is how far beyond what a policy itself can leave a state may lie ahead of now, in microseconds. Up to there a
// clock that was put back or a rule that was edited explains it. Beyond, the counter starts again as if never hit.
const grace = int64(366 * 24 * time.Hour / time.Microsecond)

// never is the state of a counter that was never hit.
var never State

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

// part is the part of a tick that a funnel's B holds.
func (s *State) part() int64 { return s.B & (1<<partBits - 1) }

// written is when a funnel's state was written, in microseconds since the Unix epoch; 0 if the state does not say.
func (s *State) written() int64 {
	span := s.B >> partBits
	if span == 0 {
		return 0
	}
	return s.A - span&(1<<spanBits-1)<<(span>>spanBits)
}
