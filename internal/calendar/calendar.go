// Package calendar knows where the hours, days, weeks, months and years of time zones begin.
package calendar

import (
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// Calendar knows where the hours, days, weeks, months or years of a time zone begin. Its windows tile time: each
// ends where the next one begins.
//
// A day, or what is made of days, begins at the first moment at which the zone's clocks show its date or a later
// one. So the clock that is set back over midnight does not begin the same day twice, one that skips midnight
// begins the day right there, and a date that was skipped altogether has no window. An hour begins whenever the
// clocks show a full hour, so that the hour that occurs twice when summer time ends is two windows.
//
// Its answers depend on nothing but the time. It is safe for concurrent use.
type Calendar struct {
	Zone         *time.Location
	length       int64 // of a window, nominal, in seconds
	days, months int64 // how many of them make a window; hours if both are 0

	cache atomic.Pointer[Edges] // those around a time that was asked for last
}

// Edges are where five windows that follow each other begin, in microseconds since the Unix epoch: the one before
// the current window, the current one, and three after it.
type Edges [5]int64

// calendarWindow is a window that a calendar has, by its nominal length.
type calendarWindow struct {
	length       time.Duration
	days, months int64
}

const day = 24 * time.Hour

var calendarWindows = []calendarWindow{
	{time.Hour, 0, 0},
	{day, 1, 0},
	{7 * day, 7, 0},
	{30 * day, 0, 1},
	{2 * 30 * day, 0, 2},
	{3 * 30 * day, 0, 3},
	{4 * 30 * day, 0, 4},
	{6 * 30 * day, 0, 6},
	{365 * day, 0, 12},
}

// Has reports whether a calendar has the window: one hour, day (24 h), week (7 d) or year (365 d), or
// 1, 2, 3, 4 or 6 months (of 30 d).
func Has(window time.Duration) bool { return calendarOf(window) >= 0 }

// calendarOf is the index of the window in calendarWindows, -1 if it is not there.
func calendarOf(window time.Duration) int {
	return slices.IndexFunc(calendarWindows, func(w calendarWindow) bool { return w.length == window })
}

// New returns the calendar of a window that it Has. A nil zone is UTC.
func New(window time.Duration, zone *time.Location) *Calendar {
	if zone == nil {
		zone = time.UTC
	}
	w := calendarWindows[calendarOf(window)]
	return &Calendar{Zone: zone, length: int64(window / time.Second), days: w.days, months: w.months}
}

// Around returns the edges of the windows around now, in microseconds since the Unix epoch:
// edges[1] <= now < edges[2].
func (c *Calendar) Around(now int64) *Edges {
	if e := c.cache.Load(); e != nil && e[1] <= now && now < e[2] {
		return e
	}
	const second = 1_000_000 // no zone changes within a second
	t := floorDiv(now, second)
	e := &Edges{2: c.nextEdge(t - 4*c.length)} // no window is longer than twice its nominal length
	for e[2] <= t {
		e[0], e[1], e[2] = e[1], e[2], c.nextEdge(e[2])
	}
	e[3] = c.nextEdge(e[2])
	e[4] = c.nextEdge(e[3])
	for i := range e {
		e[i] *= second
	}
	c.cache.Store(e)
	return e
}

// nextEdge is where the first window begins that begins after t, in seconds as all that follows.
func (c *Calendar) nextEdge(t int64) int64 {
	if c.days == 0 && c.months == 0 {
		return c.nextFullHour(t + 1)
	}
	for n := c.number(t+c.shift(t).offset) + 1; ; n++ {
		if begins := c.first(c.begin(n)); begins > t {
			return begins
		}
	}
}

// number is the number of the window whose date the clocks show at local, in seconds since 1970 on those clocks.
func (c *Calendar) number(local int64) int64 {
	if c.months == 0 {
		return floorDiv(floorDiv(local, daySeconds)+epochWeekday, c.days)
	}
	year, month, _ := time.Unix(local, 0).UTC().Date()
	return floorDiv(int64(year)*12+int64(month)-1, c.months)
}

// begin is what the clocks show when window n begins; number(begin(n)) is n.
func (c *Calendar) begin(n int64) (local int64) {
	if c.months == 0 {
		return (n*c.days - epochWeekday) * daySeconds
	}
	return time.Date(0, time.Month(1+n*c.months), 1, 0, 0, 0, 0, time.UTC).Unix()
}

const (
	daySeconds   = 24 * 60 * 60
	hourSeconds  = 60 * 60
	epochWeekday = 3 // 1970-01-01 was a Thursday, the third day after a Monday
	maxOffset    = daySeconds
)

// first is the first moment at which the clocks show local or later.
func (c *Calendar) first(local int64) int64 {
	for t := local - maxOffset; ; {
		s := c.shift(t)
		if at := max(t, local-s.offset); at < s.until {
			return at
		}
		t = s.until
	}
}

// nextFullHour is the first moment from t on at which the clocks show a full hour.
func (c *Calendar) nextFullHour(t int64) int64 {
	for {
		s := c.shift(t)
		if full := t + floorMod(-(t+s.offset), hourSeconds); full < s.until {
			return full
		}
		t = s.until
	}
}

// shift is how far a zone's clocks are ahead of UTC, until a moment.
type shift struct{ offset, until int64 }

// shift returns the one at t.
func (c *Calendar) shift(t int64) shift {
	at := time.Unix(t, 0).In(c.Zone)
	_, offset := at.Zone()
	s := shift{offset: int64(offset), until: math.MaxInt64}
	if _, until := at.ZoneBounds(); !until.IsZero() {
		s.until = until.Unix()
	}
	// Beyond the transitions that a zone file lists, package time's bounds are only good close to a transition: on
	// December 31 of a leap year they end before that day. No zone changes there.
	if s.until <= t {
		s.until = (floorDiv(t, daySeconds) + 1) * daySeconds
	}
	return s
}

// floorDiv divides by b > 0, rounding down.
func floorDiv(a, b int64) int64 {
	q := a / b
	if q*b > a {
		q--
	}
	return q
}

// floorMod is what floorDiv leaves.
func floorMod(a, b int64) int64 { return a - floorDiv(a, b)*b }
