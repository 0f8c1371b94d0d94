package limiter

import (
	"time"

	"github.com/weir-ratelimit/weir/internal/calendar"
	"github.com/weir-ratelimit/weir/internal/step"
)

// FixedWindow counts the hits of each window separately.
const FixedWindow Algorithm = 1

// NewFixedWindow returns a limit of limit hits in each window.
func NewFixedWindow(limit int64, window time.Duration) Params {
	return Params{Algorithm: FixedWindow, Limit: limit, Window: window}
}

// fixedWindow counts hits per window. In a State, A is the start of the window in which B hits were counted. Windows
// start at multiples of their length since the Unix epoch, at the first hit (AlignFirstHit), or by a calendar
// (AlignCalendar).
//
// If the clock was set back, a state's window may start after now. The state is then cut, and its hits count in the
// current window. But if the clock is behind that start by at most slack, the later window goes on until it ends, so
// that a clock that steps back and forth does not grant a window twice. RetryAfter then counts from that start.
type fixedWindow struct {
	terms

	align       Align
	calendar    *calendar.Calendar // set only with AlignCalendar
	peekAtLimit bool
}

// argPeekAtLimit is added to the argument align. With it, a peek also fits when exactly Limit hits are counted.
const argPeekAtLimit = 16

func newFixedWindow(in *Params) (step.Algorithm, error) {
	switch {
	case in.Align == AlignCalendar && !calendar.Has(in.Window):
		return nil, paramError("align", "calendar needs a window of one hour, day, week or year, or of 1, 2, 3, 4 or 6 "+
			"months of 30 days, got %s; use epoch", in.Window)
	case in.Align != AlignCalendar && in.TimeZone != nil:
		return nil, paramError("time_zone", "needs windows of the calendar; "+
			"align to the calendar, or leave the time zone out")
	}
	f := &fixedWindow{terms: in.terms(), align: in.Align, peekAtLimit: in.PeekAtLimit}
	if in.Align == AlignCalendar {
		f.calendar = calendar.New(in.Window, in.TimeZone)
		in.TimeZone = f.calendar.Zone
	}
	return f, nil
}

func (f *fixedWindow) Traits() step.Traits {
	return step.Traits{
		Script: "fixed_window", Capacity: f.limit, Largest: f.limit, Extra: f.limit,
		PeeksAtLimit: f.peekAtLimit,
		OnWall:       f.align != AlignFirstHit,
		Cacheable:    f.denied != ChargeRemaining, // charges to a full window change no decision
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
	return []int64{f.limit, f.window, int64(f.align) + argPeekAtLimit*fromBool(f.peekAtLimit)}
}

// Step reports the window's end as ResetAfter even if nothing was counted in the window or the limit is 0, as
// envoyproxy/ratelimit does. With AlignFirstHit, a window without a first hit has its full length ahead.
func (f *fixedWindow) Step(s step.State, now, n int64, c step.Charge) (next step.State, o step.Outcome) {
	start, ends, count, isCut := f.currentWindow(&s, now)
	left := max(0, f.limit-count)

	needs := max(n, 1)
	if f.limit == 0 && !f.peekAtLimit {
		c = step.Nothing
	}
	ok, take := f.fits(left, n, c)
	if f.peekAtLimit && n == 0 {
		ok, needs = count <= f.limit, 0
	}
	o.Reset = micros(ends - now)
	if !ok {
		o.Delay = Never
		if needs <= f.limit {
			o.Delay = micros(ends - max(now, start))
		}
	}
	if f.gone > 0 && f.gone != ends { // the charge was in another window
		take = 0
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

// TakesBack implements step.TakesBack.
func (f *fixedWindow) TakesBack(gone int64, _ bool, _ int64) step.Algorithm {
	own := *f
	own.gone = gone
	return &own
}

// currentWindow returns the window of a hit at now, the hits counted in it so far, and whether the state was cut. Hits
// still count if their window started within the current window, even if the rule's window has become longer since.
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
