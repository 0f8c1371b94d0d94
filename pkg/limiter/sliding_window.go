package limiter

// slidingWindow is one step of the window of S segments: A is the index of the newest segment, B the length
// W/S of a segment in microseconds, and the list holds the counts of the S newest segments and of the one
// before, newest first. A segment's index is the number of such lengths since the Unix epoch.
//
// The one before is only partly inside the window, and Oldest says how much of it counts. Its share of a hit
// is rounded up to a whole hit, which decides exactly as the fraction does: the other counts, the cost and
// the limit are whole.
//
// While the clock is behind the newest segment (it stepped back), it is taken to stand at that segment's start.
func (p *Policy) slidingWindow(s *State, now, n int64, c charge, d *Decision) (next State, took bool) {
	w := segments{p: p, at: now}
	w.open(s)
	left := w.left()

	ok, take := p.fits(left, n, c)
	*d = Decision{Allowed: ok}
	changed := w.add(take)
	d.Remaining = w.left()
	if !ok {
		d.RetryAfter = Never
		if need := max(n, 1); need <= min(p.limit, p.segmentCap) {
			d.RetryAfter = micros(w.passes(need) - now)
		}
	}
	if end := w.end(); end > now {
		d.ResetAfter = micros(end - now)
	}
	if !changed {
		return State{}, false
	}
	if d.ResetAfter == 0 {
		return State{}, true
	}
	return State{A: w.index, B: p.segment, List: w.counts}, true
}

// segments is a sliding window's state at one moment.
type segments struct {
	p      *Policy
	at     int64   // now, or the newest segment's start if the clock stepped back, in microseconds
	index  int64   // of the newest segment
	counts []int64 // newest first, the last one partly outside the window
}

// open copies the state, moved on to the segment of w.at.
func (w *segments) open(s *State) {
	w.index = w.at / w.p.segment
	w.counts = make([]int64, w.p.segments+1)
	if s.List == nil {
		return
	}
	if s.B != w.p.segment {
		w.carry(s)
		return
	}
	shift := w.index - s.A
	if shift < 0 {
		w.index, w.at, shift = s.A, s.A*w.p.segment, 0
	}
	for i := int64(0); i+shift < int64(len(w.counts)) && i < int64(len(s.List)); i++ {
		w.counts[i+shift] = min(s.List[i], w.p.maxCount)
	}
}

// carry takes over a state that was counted in segments of another length (the rule changed): a count goes to
// the segment that its own segment ends in, the latest that it can belong to.
func (w *segments) carry(s *State) {
	for i, n := range s.List {
		last := ((s.A-int64(i)+1)*s.B - 1) / w.p.segment
		if pos := max(0, w.index-last); pos < int64(len(w.counts)) {
			w.counts[pos] = min(w.counts[pos]+n, w.p.maxCount)
		}
	}
}

// left is how many hits of cost 1 pass now.
func (w *segments) left() int64 {
	used := w.part(w.counts[w.p.segments], w.at%w.p.segment)
	for _, n := range w.counts[:w.p.segments] {
		used += n
	}
	return max(0, min(w.p.limit-used, w.p.segmentCap-w.counts[0]))
}

// part is what a segment with count hits adds when the window's newest segment began into microseconds ago.
func (w *segments) part(count, into int64) int64 {
	switch w.p.oldest {
	case OldestNone:
		return 0
	case OldestFull:
		return count
	default:
		width := w.p.segment / w.p.tick
		return ceilDiv(count*(width-into/w.p.tick), width)
	}
}

// passes is the first moment at which a cost of need passes if nothing else arrives. Only the current segment
// can be held back by segmentCap.
func (w *segments) passes(need int64) int64 {
	inside := int64(0)
	for _, n := range w.counts[:w.p.segments] {
		inside += n
	}
	into := w.at % w.p.segment
	start := w.at - into
	for j := w.p.segments; ; j-- {
		first := w.p.segments == j
		if room := w.p.limit - need - inside; room >= 0 && (!first || w.counts[0]+need <= w.p.segmentCap) {
			if from, ok := w.shrinks(w.counts[j], into, room); ok {
				return start + from
			}
		}
		if j == 0 {
			return start + w.p.segment
		}
		inside -= w.counts[j-1]
		start += w.p.segment
		into = 0
	}
}

// shrinks is the first moment within a segment, not before into, at which a partly expired count of hits adds
// at most room.
func (w *segments) shrinks(count, into, room int64) (from int64, ok bool) {
	if w.part(count, into) <= room {
		return into, true
	}
	if w.p.oldest != OldestProportional {
		return 0, false
	}
	// The first from with count * (width-from)/width <= room, in ticks.
	width := w.p.segment / w.p.tick
	from = (width - room*width/count) * w.p.tick
	return from, from < w.p.segment
}

// add charges take hits to the newest segment, or gives back from the newest hits on.
func (w *segments) add(take int64) (changed bool) {
	if take > 0 {
		w.counts[0] = min(w.counts[0]+take, w.p.maxCount)
		return true
	}
	for i := range w.counts {
		back := min(-take, w.counts[i])
		w.counts[i] -= back
		take += back
		changed = changed || back > 0
	}
	return changed
}

// end is when the last count has left the window.
func (w *segments) end() int64 {
	whole := w.p.segments + 1
	if w.p.oldest == OldestNone {
		whole = w.p.segments
	}
	for i, n := range w.counts[:whole] {
		if n > 0 {
			return (w.index - int64(i) + whole) * w.p.segment
		}
	}
	return 0
}
