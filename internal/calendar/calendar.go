// Package calendar computes when the hours, days, weeks, months and years of a time zone begin.
package calendar

import (
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// Calendar computes when the hours, days, weeks, months or years of a time zone begin. Each ends when the next begins.
//
// A day, or a window of several days, begins at the first moment at which the zone's clocks show its first date or a
// later one. So if the clocks are set back over midnight, the day does not begin twice. If the clocks skip midnight,
// the day begins at the skip. If they skip a whole date, that date has no window. An hour begins whenever the clocks
// show a full hour. So the hour that occurs twice at the end of summer time is two windows.
//
// The windows depend only on the time. A Calendar is safe for concurrent use.
type Calendar struct {
	Zone         *time.Location
	length       int64 // nominal length of a window, in seconds
	days, months int64 // number of days or months in a window; both are 0 for hours

	cache atomic.Pointer[Edges] // result of the last Around
}

// Edges are the start times of five successive windows, in microseconds since the Unix epoch: the window before the
// current one, the current window, and the three after it.
type Edges [5]int64

// calendarWindow is a kind of window that a Calendar can have. length is the nominal length.
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

// Has reports whether a Calendar can have windows of this length: one hour, day (24 h), week (7 d) or year (365 d), or
// 1, 2, 3, 4 or 6 months (30 d).
func Has(window time.Duration) bool { return calendarOf(window) >= 0 }

// calendarOf returns the index in calendarWindows of windows of this length, or -1 if there are none.
func calendarOf(window time.Duration) int {
	return slices.IndexFunc(calendarWindows, func(w calendarWindow) bool { return w.length == window })
}

// New returns a Calendar with windows of the given length, for which Has must be true. A nil zone means UTC.
func New(window time.Duration, zone *time.Location) *Calendar {
	if zone == nil {
		zone = time.UTC
	}
	w := calendarWindows[calendarOf(window)]
	return &Calendar{Zone: zone, length: int64(window / time.Second), days: w.days, months: w.months}
}

// Around returns the edges of the windows around now, in microseconds since the Unix epoch:
// edges[1] <= now < edges[2]. The caller must not change them.
func (c *Calendar) Around(now int64) *Edges {
	if e := c.cache.Load(); e != nil && e[1] <= now && now < e[2] {
		return e
	}
	const second = 1_000_000 // the offset of a zone never changes within a second
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

// nextEdge returns the start of the first window after t. From here on, times are in seconds since the Unix epoch.
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

// number returns the number of the window at the local time local, in seconds since 1970 on the zone's clocks.
func (c *Calendar) number(local int64) int64 {
	if c.months == 0 {
		return floorDiv(floorDiv(local, daySeconds)+epochWeekday, c.days)
	}
	year, month, _ := time.Unix(local, 0).UTC().Date()
	return floorDiv(int64(year)*12+int64(month)-1, c.months)
}

// begin returns the local time at which window n begins; number(begin(n)) is n.
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

// first returns the first moment at which the zone's clocks show the local time local or later.
func (c *Calendar) first(local int64) int64 {
	for t := local - maxOffset; ; {
		s := c.shift(t)
		if at := max(t, local-s.offset); at < s.until {
			return at
		}
		t = s.until
	}
}

// nextFullHour returns the first moment from t on at which the zone's clocks show a full hour.
func (c *Calendar) nextFullHour(t int64) int64 {
	for {
		s := c.shift(t)
		if full := t + floorMod(-(t+s.offset), hourSeconds); full < s.until {
			return full
		}
		t = s.until
	}
}

// shift is a zone's offset from UTC, in seconds, and the time until which it applies.
type shift struct{ offset, until int64 }

// shift returns the zone's shift at t.
func (c *Calendar) shift(t int64) shift {
	at := time.Unix(t, 0).In(c.Zone)
	_, offset := at.Zone()
	s := shift{offset: int64(offset), until: math.MaxInt64}
	if _, until := at.ZoneBounds(); !until.IsZero() {
		s.until = until.Unix()
	}
	// Beyond the transitions that a zone file lists, package time returns wrong bounds on December 31 of a leap year: they
	// end before that day. No zone has a transition then.
	if s.until <= t {
		s.until = (floorDiv(t, daySeconds) + 1) * daySeconds
	}
	return s
}

// floorDiv returns a/b rounded down, for b > 0.
func floorDiv(a, b int64) int64 {
	q := a / b
	if q*b > a {
		q--
	}
	return q
}

func floorMod(a, b int64) int64 { return a - floorDiv(a, b)*b }
