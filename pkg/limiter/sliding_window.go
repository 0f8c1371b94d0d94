package limiter

// slidingWindow is one step of the window of S segments: A is the index of the newest segment, B the length
// W/S of a segment in microseconds, and the list holds the counts of the S newest segments and of the one
// before, newest first. A segment's index is the number of such lengths since the Unix epoch.
//
// The one before is only partly inside the window, and Oldest says how much of it counts. Its share of a hit
// is rounded up to a whole hit, which decides exactly as the fraction does: the other counts, the cost and
// the limit are whole.
//
// While the clock is behind the newest segment (it stepped back), it is taken to stand at that segment's start. Where
// the step leaves the state as it is, the times are those of that state, which may belong to segments still to come.
func (p *Policy) slidingWindow(s *State, now, n int64, c charge, d *Decision) (next State, took bool) {
	if s.A*s.B-now > grace {
		s = &never
	}
	w := segments{p: p, at: now}
	w.open(s)
	left := w.left()

	ok, take := p.fits(left, n, c)
	*d = Decision{Allowed: ok}
	kept, changed := *s, w.add(take)
	if changed {
		kept = State{A: w.index, B: p.segment, List: w.counts}
	}
	d.Remaining = w.left()
	if !ok {
		d.RetryAfter = Never
		if need := max(n, 1); need <= min(p.limit, p.segmentCap) {
			d.RetryAfter = micros(p.passesAt(&kept, need) - now)
		}
	}
	if end := p.empty(&kept); end > w.at {
		d.ResetAfter = micros(end - now)
	}
	if !changed {
		return State{}, false
	}
	if d.ResetAfter == 0 {
		return State{}, true
	}
	return kept, true
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
		if pos := max(0, w.index-w.p.segmentOf(s, i)); pos < int64(len(w.counts)) {
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

// segmentOf is the segment that a state's count i belongs to, also if it was counted in segments of another length.
func (p *Policy) segmentOf(s *State, i int) int64 {
	return ((s.A-int64(i)+1)*s.B - 1) / p.segment
}

// passesAt is the first moment at which a cost of need passes that a state denies, if nothing else arrives.
func (p *Policy) passesAt(s *State, need int64) int64 {
	capped, _, _ := p.exceeds(s, p.segmentCap-need)
	at := (capped + 1) * p.segment
	oldest, count, room := p.exceeds(s, p.limit-need)
	if count == 0 {
		return at
	}
	leaves := (oldest + p.segments) * p.segment
	switch p.oldest {
	case OldestNone:
	case OldestFull:
		leaves += p.segment
	default: // the first part with count * (width-part)/width <= room, in ticks
		width := p.segment / p.tick
		leaves += (width - room*width/count) * p.tick
	}
	return max(at, leaves)
}

// exceeds is the newest segment whose count, and the newer ones, are more than most; room is what the newer ones leave
// of it. Without such a segment count is 0.
func (p *Policy) exceeds(s *State, most int64) (segment, count, room int64) {
	room = most
	for i, n := range s.List {
		if of := p.segmentOf(s, i); of != segment {
			if count > room {
				break
			}
			room -= count
			segment, count = of, 0
		}
		count = min(count+n, p.maxCount)
	}
	if count <= room {
		return -1, 0, 0
	}
	return segment, count, room
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

// empty is when the last of a state's counts has left the window.
func (p *Policy) empty(s *State) int64 {
	whole := p.segments + 1
	if p.oldest == OldestNone {
		whole = p.segments
	}
	for i, n := range s.List {
		if n > 0 {
			return (p.segmentOf(s, i) + whole) * p.segment
		}
	}
	return 0
}
