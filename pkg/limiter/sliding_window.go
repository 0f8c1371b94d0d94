package limiter

import (
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
)

// SlidingWindow counts hits per segment of a window that moves on segment by segment.
const SlidingWindow Algorithm = 4

// NewSlidingWindow returns a limit of limit hits in a window that moves on by a tenth of its length.
func NewSlidingWindow(limit int64, window time.Duration) Params {
	return Params{Algorithm: SlidingWindow, Limit: limit, Window: window}
}

// slidingWindow counts hits per segment. In a State, A is the index of the newest segment, B is the length of a segment
// in microseconds, and the list holds the counts of the window's segments and of the segment before them, newest first.
// The index of a segment is the number of segment lengths from the Unix epoch to its start.
//
// The oldest segment is only partly inside the window, and Oldest sets how much of it counts. Its share is rounded up
// to whole hits. This decides exactly as the fraction would, because the other counts, the cost and the limit are
// whole.
//
// A state is cut if the clock was set back, or if the rule was edited and the newest segment, which was longer, ends in
// the future. Hits of future segments then count in the current segment. But a clock that is behind the start of the
// newest segment by at most slack is taken to be at that start.
type slidingWindow struct {
	terms

	oldest     Oldest
	tick       int64 // unit of time in which a segment's share is counted, microseconds: 1, 1,000 or 1,000,000
	segments   int64
	segment    int64 // length of a segment, microseconds
	segmentCap int64 // hits
	maxCount   int64 // maximum count of a segment, hits, with which the sum of all segments is exact
}

// newSlidingWindow checks that the window divides into its segments, and chooses the shortest tick with which a
// segment's share of the limit is exact.
func newSlidingWindow(in *Params) (step.Algorithm, error) {
	in.Segments, in.SegmentCap = orDefault(in.Segments, 10), orDefault(in.SegmentCap, in.Limit)
	sw := &slidingWindow{terms: in.terms(), oldest: in.Oldest, segments: in.Segments, segmentCap: in.SegmentCap}
	if sw.window%sw.segments != 0 {
		return nil, paramError("segments", "%d segments of %s are not whole microseconds; use %d",
			sw.segments, in.Window, divisorNear(sw.window, sw.segments))
	}
	sw.segment = sw.window / sw.segments
	if sw.segmentCap > sw.limit {
		return nil, paramError("segment_cap", "must be at most the limit, %d, got %d", sw.limit, sw.segmentCap)
	}
	for _, tick := range clocks {
		if sw.segment%tick != 0 {
			break
		}
		if width := sw.segment / tick; sw.limit <= step.Exact/width/2 {
			sw.tick, sw.maxCount = tick, step.Exact/max(width, sw.segments+1)
			return sw, nil
		}
	}
	return nil, paramError("limit", "%d in segments of %s need more than 53 bits to count exactly; "+
		"use more segments, or whole seconds", sw.limit, time.Duration(sw.segment)*time.Microsecond)
}

// divisorNear returns the divisor of window that is nearest to segments.
func divisorNear(window, segments int64) int64 {
	for d := int64(1); ; d++ {
		if segments-d >= 1 && window%(segments-d) == 0 {
			return segments - d
		}
		if segments+d <= step.MaxSegments && window%(segments+d) == 0 {
			return segments + d
		}
	}
}

func (sw *slidingWindow) Traits() step.Traits {
	most := min(sw.limit, sw.segmentCap)
	t := step.Traits{Script: "sliding_window", Capacity: most, Largest: most, Partial: most < sw.limit}
	if sw.oldest != OldestFull {
		t.Extra = most // hits of the oldest segment that no longer count
	}
	return t
}

func (sw *slidingWindow) Args() []int64 {
	return []int64{sw.limit, sw.tick, sw.segments, sw.segment, sw.segmentCap, sw.maxCount, int64(sw.oldest)}
}

func (sw *slidingWindow) Step(s step.State, now, n int64, c step.Charge) (next step.State, o step.Outcome) {
	w := segments{of: sw, at: now}
	isCut := w.open(&s)

	ok, take := sw.fits(w.left(), n, c)
	changed := w.add(take)
	o.Remaining = w.left()
	if !ok {
		o.Delay = Never
		if need := max(n, 1); need <= min(sw.limit, sw.segmentCap) {
			o.Delay = micros(w.passesAt(need) - w.at)
		}
	}
	if end := w.empty(); end > w.at {
		o.Reset = micros(end - now)
	}
	o.Is = step.VerdictOf(ok, changed || isCut, isCut)
	if o.Reset == 0 {
		return step.State{}, o
	}
	return step.State{A: w.index, B: sw.segment, List: w.counts}, o
}

// segments is the state of a sliding window at one moment.
type segments struct {
	of     *slidingWindow
	at     int64   // now, or the newest segment's start if that is up to slack later, microseconds
	index  int64   // index of the newest segment
	counts []int64 // newest first; the last segment is partly outside the window
}

// open copies the state, moves it on to the segment of w.at, and reports whether the state was cut.
func (w *segments) open(s *step.State) (isCut bool) {
	w.index = w.at / w.of.segment
	w.counts = make([]int64, w.of.segments+1)
	if s.List == nil {
		return false
	}
	shift := w.index - s.A
	if shift == -1 && s.B == w.of.segment && s.A*s.B-w.at <= slack {
		w.index, w.at, shift = s.A, s.A*s.B, 0
	}
	if s.B != w.of.segment || shift < 0 {
		return w.carry(s)
	}
	for i := int64(0); i+shift < int64(len(w.counts)) && i < int64(len(s.List)); i++ {
		w.counts[i+shift] = min(s.List[i], w.of.maxCount)
	}
	return false
}

// carry takes over a state that is ahead, or whose segments have another length (the rule was edited). A count goes to
// the segment in which its old segment ends, but never to a segment after the current segment.
func (w *segments) carry(s *step.State) (isCut bool) {
	for i, n := range s.List {
		pos := w.index - ((s.A-int64(i)+1)*s.B-1)/w.of.segment
		isCut = isCut || pos < 0
		if pos = max(0, pos); pos < int64(len(w.counts)) {
			w.counts[pos] = min(w.counts[pos]+n, w.of.maxCount)
		}
	}
	return isCut
}

// left returns how many hits of cost 1 pass now.
func (w *segments) left() int64 {
	used := w.part(w.counts[w.of.segments], w.at%w.of.segment)
	for _, n := range w.counts[:w.of.segments] {
		used += n
	}
	return max(0, min(w.of.limit-used, w.of.segmentCap-w.counts[0]))
}

// part returns how many of the oldest segment's hits count if the newest segment began into microseconds ago.
func (w *segments) part(count, into int64) int64 {
	switch w.of.oldest {
	case OldestNone:
		return 0
	case OldestFull:
		return count
	default:
		width := w.of.segment / w.of.tick
		return ceilDiv(count*(width-into/w.of.tick), width)
	}
}

// passesAt returns when a cost of need that does not pass now will pass, if no other hit arrives.
func (w *segments) passesAt(need int64) int64 {
	capped, _, _ := w.exceeds(w.of.segmentCap - need)
	at := (capped + 1) * w.of.segment
	oldest, count, room := w.exceeds(w.of.limit - need)
	if count == 0 {
		return at
	}
	leaves := (oldest + w.of.segments) * w.of.segment
	switch w.of.oldest {
	case OldestNone:
	case OldestFull:
		leaves += w.of.segment
	default: // the first tick of the segment with count * (width-tick)/width <= room
		width := w.of.segment / w.of.tick
		leaves += (width - room*width/count) * w.of.tick
	}
	return max(at, leaves)
}

// exceeds returns the newest segment whose count, together with the counts of newer segments, is more than most. room
// is most minus the counts of newer segments. If there is no such segment, count is 0.
func (w *segments) exceeds(most int64) (segment, count, room int64) {
	room = most
	for i, n := range w.counts {
		if n > room {
			return w.index - int64(i), n, room
		}
		room -= n
	}
	return -1, 0, 0
}

// TakesBack implements step.TakesBack.
func (sw *slidingWindow) TakesBack(gone int64, _ bool, _ int64) step.Algorithm {
	own := *sw
	own.gone = gone
	return &own
}

// add charges take hits to the newest segment. If take is negative, it refunds hits, newest first. If gone is set, it
// begins with the segment that leaves the window at gone.
func (w *segments) add(take int64) (changed bool) {
	if take > 0 {
		w.counts[0] = min(w.counts[0]+take, w.of.maxCount)
		return true
	}
	newest := int64(0)
	if w.of.gone > 0 {
		newest = max(0, w.index-(ceilDiv(w.of.gone, w.of.segment)-w.of.whole()))
	}
	for i := newest; i < int64(len(w.counts)); i++ {
		back := min(-take, w.counts[i])
		w.counts[i] -= back
		take += back
		changed = changed || back > 0
	}
	return changed
}

// empty returns when the last hit leaves the window, or 0 if there are no hits.
func (w *segments) empty() int64 {
	for i, n := range w.counts {
		if n > 0 {
			return (w.index - int64(i) + w.of.whole()) * w.of.segment
		}
	}
	return 0
}

// whole returns the number of segments from the start of a segment until its hits no longer count.
func (sw *slidingWindow) whole() int64 {
	if sw.oldest == OldestNone {
		return sw.segments
	}
	return sw.segments + 1
}
