package limiter

// FixedWindow is a counter per window.
const FixedWindow Algorithm = 1

// fixedWindow counts hits per window: in a State, A is the start of the window in which B hits were counted. Windows
// start at multiples of the window's length since the Unix epoch, with the first hit (AlignFirstHit), or where a
// calendar has them (AlignCalendar).
//
// A window that starts after now (the clock stepped back) goes on until it ends: it is not granted a second time.
type fixedWindow struct {
	terms

	align       Align
	calendar    *calendar // with AlignCalendar
	lookAtLimit bool
}

// argLookAtLimit is added to the argument align: looks fit at the limit, too.
const argLookAtLimit = 16

func newFixedWindow(in *Params) (algorithm, error) {
	switch {
	case in.Align == AlignCalendar && !OnCalendar(in.Window):
		return nil, paramError("align", "calendar goes with a window of one hour, day, week or year, or of 1, 2, 3, 4 or 6 "+
			"months of 30 days, not with %s; use epoch", in.Window)
	case in.Align != AlignCalendar && in.TimeZone != nil:
		return nil, paramError("time_zone", "goes with windows of the calendar only; "+
			"align to the calendar, or leave the time zone out")
	}
	f := &fixedWindow{terms: in.terms(), align: in.Align, lookAtLimit: in.LookAtLimit}
	if in.Align == AlignCalendar {
		f.calendar = newCalendar(in.Window, in.TimeZone)
		in.TimeZone = f.calendar.zone
	}
	return f, nil
}

func (f *fixedWindow) traits() traits {
	return traits{
		script: "fixed_window", capacity: f.limit, largest: f.limit, extra: f.limit,
		onWall:    f.align != AlignFirstHit,
		cacheable: f.denied != ChargeRemaining, // what is added to a full window does not show
	}
}

func (f *fixedWindow) args() []int64 {
	return []int64{f.limit, f.window, int64(f.align) + argLookAtLimit*fromBool(f.lookAtLimit)}
}

// step returns a Decision whose ResetAfter is always the window's end, also where nothing was counted in it and for a
// limit of 0: envoyproxy/ratelimit answers so. With AlignFirstHit, a window that no hit has begun is as long as the
// next one will be.
func (f *fixedWindow) step(s State, now, n int64, c Charge) (next State, o outcome) {
	start, ends, count := f.currentWindow(&s, now)
	left := max(0, f.limit-count)
	end := micros(ends - now)

	needs := max(n, 1)
	if f.limit == 0 && !f.lookAtLimit {
		c = ChargeNothing
	}
	ok, take := f.fits(left, n, c)
	if f.lookAtLimit && n == 0 {
		ok, needs = count <= f.limit, 0
	}
	o.reset = end
	if !ok {
		o.delay = Never
		if needs <= f.limit {
			o.delay = end
		}
	}
	before := count
	count = min(max(0, count+take), horizon)
	o.remaining = max(0, f.limit-count)
	if count == 0 && f.align == AlignFirstHit {
		o.reset = micros(f.window)
	}
	o.is = verdictOf(ok, count != before)
	if count == 0 {
		return State{}, o
	}
	return State{A: start, B: count}, o
}

// currentWindow returns the window that a hit at now falls into, and what was counted in it. A count stays as long as
// the window in which it was counted started within the current one, also where the rule's window became longer
// meanwhile.
func (f *fixedWindow) currentWindow(s *State, now int64) (start, end, count int64) {
	switch f.align {
	case AlignCalendar:
		return f.calendarWindow(s, now)
	case AlignFirstHit:
		start = now
		if s.B > 0 && s.A+f.window > now && s.A-now <= grace {
			start, count = s.A, s.B
		}
	default:
		start = now - now%f.window
		if s.B > 0 && s.A >= start && s.A-now <= grace {
			start, count = max(start, s.A-s.A%f.window), s.B
		}
	}
	return start, start + f.window, count
}

// calendarWindow is currentWindow of a calendar. A window that starts after now goes on until it ends. If it starts so
// far ahead of now that its end is not among the edges, which is all that Redis knows, it ends after at most twice its
// length: no window is longer.
func (f *fixedWindow) calendarWindow(s *State, now int64) (start, end, count int64) {
	e := f.calendar.around(now)
	if s.B == 0 || s.A < e[1] || s.A-now > grace {
		return e[1], e[2], 0
	}
	for i := 2; i < len(e); i++ {
		if s.A < e[i] {
			return e[i-1], e[i], s.B
		}
	}
	return s.A, s.A + 2*f.window, s.B
}
