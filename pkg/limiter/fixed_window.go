package limiter

import (
	"time"

	"github.com/weir-ratelimit/weir/internal/calendar"
	"github.com/weir-ratelimit/weir/internal/step"
)

// FixedWindow is a counter per window.
const FixedWindow Algorithm = 1

// NewFixedWindow returns a limit of so many hits in each window.
func NewFixedWindow(limit int64, window time.Duration) Params {
	return Params{Algorithm: FixedWindow, Limit: limit, Window: window}
}

// fixedWindow counts hits per window: in a State, A is the start of the window in which B hits were counted. Windows
// start at multiples of the window's length since the Unix epoch, with the first hit (AlignFirstHit), or where a
// calendar has them (AlignCalendar).
//
// A state may be of a window that starts after now: the clock was set back. It is cut: what was counted in it counts in
// the current window. But if the clock is behind the next window's start by less than slack, that window goes on until
// it ends, so that a clock that steps to and fro does not grant it twice. Nobody is told to wait longer than it takes.
type fixedWindow struct {
	terms

	align       Align
	calendar    *calendar.Calendar // with AlignCalendar
	lookAtLimit bool
}

// argLookAtLimit is added to the argument align: looks fit at the limit, too.
const argLookAtLimit = 16

func newFixedWindow(in *Params) (step.Algorithm, error) {
	switch {
	case in.Align == AlignCalendar && !calendar.Has(in.Window):
		return nil, paramError("align", "calendar goes with a window of one hour, day, week or year, or of 1, 2, 3, 4 or 6 "+
			"months of 30 days, not with %s; use epoch", in.Window)
	case in.Align != AlignCalendar && in.TimeZone != nil:
		return nil, paramError("time_zone", "goes with windows of the calendar only; "+
			"align to the calendar, or leave the time zone out")
	}
	f := &fixedWindow{terms: in.terms(), align: in.Align, lookAtLimit: in.LookAtLimit}
	if in.Align == AlignCalendar {
		f.calendar = calendar.New(in.Window, in.TimeZone)
		in.TimeZone = f.calendar.Zone
	}
	return f, nil
}

func (f *fixedWindow) Traits() step.Traits {
	return step.Traits{
		Script: "fixed_window", Capacity: f.limit, Largest: f.limit, Extra: f.limit,
		LooksAtLimit: f.lookAtLimit,
		OnWall:       f.align != AlignFirstHit,
		Cacheable:    f.denied != ChargeRemaining, // what is added to a full window does not show
	}
}

// Edges implements step.Dated.
func (f *fixedWindow) Edges(now int64) []int64 {
	if f.calendar == nil {
		return nil
	}
	return f.calendar.Around(now)[:]
}

func (f *fixedWindow) Args() []int64 {
	return []int64{f.limit, f.window, int64(f.align) + argLookAtLimit*fromBool(f.lookAtLimit)}
}

// step returns a Decision whose ResetAfter is always the window's end, also where nothing was counted in it and for a
// limit of 0: envoyproxy/ratelimit answers so. With AlignFirstHit, a window that no hit has begun is as long as the
// next one will be.
func (f *fixedWindow) Step(s step.State, now, n int64, c step.Charge) (next step.State, o step.Outcome) {
	start, ends, count, isCut := f.currentWindow(&s, now)
	left := max(0, f.limit-count)

	needs := max(n, 1)
	if f.limit == 0 && !f.lookAtLimit {
		c = step.Nothing
	}
	ok, take := f.fits(left, n, c)
	if f.lookAtLimit && n == 0 {
		ok, needs = count <= f.limit, 0
	}
	o.Reset = micros(ends - now)
	if !ok {
		o.Delay = Never
		if needs <= f.limit {
			o.Delay = micros(ends - max(now, start))
		}
	}
	before := count
	count = min(max(0, count+take), step.Horizon)
	o.Remaining = max(0, f.limit-count)
	if count == 0 && f.align == AlignFirstHit {
		o.Reset = micros(f.window)
	}
	o.Is = step.VerdictOf(ok, count != before || isCut, isCut)
	if count == 0 {
		return step.State{}, o
	}
	return step.State{A: start, B: count}, o
}

// currentWindow returns the window that a hit at now falls into, what was counted in it, and whether the state was cut.
// A count stays as long as the window in which it was counted started within the current one, also where the rule's
// window became longer meanwhile.
func (f *fixedWindow) currentWindow(s *step.State, now int64) (start, end, count int64, isCut bool) {
	if f.align == AlignFirstHit {
		if s.B == 0 || s.A+f.window <= now {
			return now, now + f.window, 0, false
		}
		start = min(s.A, now)
		return start, start + f.window, s.B, s.A > now
	}
	start = now - now%f.window
	end, next := start+f.window, start+2*f.window
	if f.calendar != nil {
		e := f.calendar.Around(now)
		start, end, next = e[1], e[2], e[3]
	}
	switch {
	case s.B == 0 || s.A < start:
		return start, end, 0, false
	case s.A < end:
		return start, end, s.B, false
	case s.A < next && end-now <= slack:
		return end, next, s.B, false
	}
	return start, end, s.B, true
}
