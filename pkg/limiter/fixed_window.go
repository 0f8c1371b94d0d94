package limiter

// fixedWindow is one step of the counter per window: A is the start of the window that B hits were counted
// in. Windows start at multiples of W since the Unix epoch, with the first hit (AlignFirstHit), or where a calendar
// has them (AlignCalendar).
//
// A window that starts after now (the clock stepped back) goes on until it ends: it is not granted twice.
//
// ResetAfter is always the window's end, also where nothing was counted in it and for a limit of 0: envoyproxy/ratelimit
// answers so. Of AlignFirstHit, a window that no hit has begun is as long as the next one will be.
func (p *Policy) fixedWindow(s *State, now, n int64, c charge, d *Decision) (next State, took bool) {
	start, ends, count := p.currentWindow(s, now)
	left := max(0, p.limit-count)
	end := micros(ends - now)

	if p.limit == 0 {
		c = look
	}
	ok, take := p.fits(left, n, c)
	*d = Decision{Allowed: ok, ResetAfter: end}
	if !ok {
		d.RetryAfter = Never
		if max(n, 1) <= p.limit {
			d.RetryAfter = end
		}
	}
	before := count
	count = min(max(0, count+take), horizon)
	d.Remaining = max(0, p.limit-count)
	if count == 0 && p.align == AlignFirstHit {
		d.ResetAfter = p.Window()
	}
	if count == before {
		return State{}, false
	}
	if count == 0 {
		return State{}, true
	}
	return State{A: start, B: count}, true
}

// currentWindow is the window that a hit at now falls into, and what was counted in it. A count is kept as
// long as the window that it was counted in started within the current one, also where the rule's window
// became longer in the meantime.
func (p *Policy) currentWindow(s *State, now int64) (start, end, count int64) {
	switch p.align {
	case AlignCalendar:
		return p.calendarWindow(s, now)
	case AlignFirstHit:
		start = now
		if s.B > 0 && s.A+p.window > now && s.A-now <= grace {
			start, count = s.A, s.B
		}
	default:
		start = now - now%p.window
		if s.B > 0 && s.A >= start && s.A-now <= grace {
			start, count = max(start, s.A-s.A%p.window), s.B
		}
	}
	return start, start + p.window, count
}
