package limiter_test

import (
	"archive/zip"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

const day = 24 * time.Hour

// calendarWindows are the windows that AlignCalendar takes.
var calendarWindows = []time.Duration{
	time.Hour, day, 7 * day, 30 * day, 60 * day, 90 * day, 120 * day, 180 * day, 365 * day,
}

// hardZones are zones whose clocks are hard to follow: they change by half an hour, at or over midnight, by a whole
// day, or by other rules than summer and winter time.
var hardZones = []string{
	"UTC", "Europe/Berlin", "Asia/Shanghai", "America/New_York", "Europe/Dublin", "Australia/Lord_Howe",
	"America/St_Johns",
	"Asia/Kathmandu", "Pacific/Chatham", "America/Sao_Paulo", "Africa/Cairo", "Asia/Beirut", "Asia/Tehran",
	"America/Havana",
	"Pacific/Apia", "Pacific/Kwajalein", "Pacific/Enderbury", "Africa/Casablanca", "Antarctica/Troll", "Asia/Pyongyang",
	"America/Caracas", "Africa/Monrovia", "America/Godthab", "Asia/Gaza", "Etc/GMT-14", "Etc/GMT+12",
}

func zone(tb interface{ Fatal(args ...any) }, name string) *time.Location {
	loc, err := time.LoadLocation(name)
	if err != nil {
		tb.Fatal(err)
	}
	return loc
}

func calendarPolicy(tb interface{ Fatal(args ...any) }, window time.Duration, loc *time.Location) *limiter.Policy {
	p, err := limiter.NewPolicy(limiter.Params{
		Algorithm: limiter.FixedWindow, Limit: 5, Window: window, Align: limiter.AlignCalendar, TimeZone: loc,
	})
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// civil returns the window that a zone's clocks show at a time, as a number that grows with the date.
func civil(window time.Duration, at time.Time) int {
	y, m, d := at.Date()
	days := int(time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix()) / 86400
	switch window {
	case day:
		return days
	case 7 * day:
		for time.Date(1970, 1, 1+days, 0, 0, 0, 0, time.UTC).Weekday() != time.Monday {
			days--
		}
		return days
	case 365 * day:
		return y
	default:
		return (12*y + int(m) - 1) / int(window/(30*day))
	}
}

// naiveWindow finds the window around now by reading the clock every minute, and every second around a change.
func naiveWindow(window time.Duration, loc *time.Location, now int64) (start, end int64) {
	second := time.UnixMicro(now).Truncate(time.Second).Unix()
	if window == time.Hour {
		full := func(t int64) bool {
			at := time.Unix(t, 0).In(loc)
			return at.Minute() == 0 && at.Second() == 0
		}
		for start = second; !full(start); start-- { //nolint:revive // it looks
		}
		for end = second + 1; !full(end); end++ { //nolint:revive // it looks
		}
		return start * 1e6, end * 1e6
	}
	shown := func(t int64) int { return civil(window, time.Unix(t, 0).In(loc)) }
	// begins is the first time from which the clocks have shown the window of the date that t shows in UTC, or a
	// later one.
	begins := func(t int64) int64 {
		wanted := civil(window, time.Unix(t, 0).UTC())
		near := time.Unix(t, 0).UTC()
		for civil(window, near) == wanted {
			near = near.AddDate(0, 0, -1)
		}
		y, m, d := near.Date()
		at := time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix() // a day before, in UTC
		for shown(at) < wanted {
			at += 60
		}
		for at -= 60; shown(at) < wanted; at++ { //nolint:revive // it looks
		}
		return at
	}
	y, m, d := time.Unix(second, 0).In(loc).Date()
	date := time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
	for start = begins(date.Unix()); ; date = date.AddDate(0, 0, 1) {
		if tomorrow := date.AddDate(0, 0, 1); civil(window, tomorrow) != civil(window, date) {
			if end = begins(tomorrow.Unix()); end > second {
				return start * 1e6, end * 1e6
			}
			start = end
		}
	}
}

// TestCalendarWindowsAreThoseOfTheClock holds windows against a clock that is looked at every minute, and checks
// that they follow each other without a gap.
func TestCalendarWindowsAreThoseOfTheClock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		window := rapid.SampledFrom(calendarWindows).Draw(t, "window")
		loc := zone(t, rapid.OneOf(rapid.SampledFrom(hardZones), rapid.SampledFrom(allZones(t))).Draw(t, "zone"))
		p := calendarPolicy(t, window, loc)
		now := drawTime(t, loc)
		for range 3 {
			e := limit.Edges(p, now)
			start, end := naiveWindow(window, loc, now)
			if e[1] != start || e[2] != end {
				t.Fatalf("%s in %s at %s: from %s to %s, want %s to %s", window, loc, at(now, loc), at(e[1], loc), at(e[2], loc),
					at(start, loc), at(end, loc))
			}
			fresh := calendarPolicy(t, window, loc)
			for i, edge := range e[:4] {
				if got := limit.Edges(fresh, edge); got[1] != edge || got[2] != e[i+1] {
					t.Fatalf("%s in %s: at its own edge %s a window goes from %s to %s, want an end at %s", window, loc,
						at(edge, loc), at(got[1], loc), at(got[2], loc), at(e[i+1], loc))
				}
				if got := limit.Edges(fresh, e[i+1]-1); got[1] != edge {
					t.Fatalf("%s in %s: a microsecond before %s the window begins at %s, want %s", window, loc,
						at(e[i+1], loc), at(got[1], loc), at(edge, loc))
				}
			}
			now = e[2] + rapid.SampledFrom([]int64{-1, 0, 1}).Draw(t, "near")
		}
	})
}

func at(us int64, loc *time.Location) string {
	return time.UnixMicro(us).In(loc).Format(time.RFC3339Nano)
}

// drawTime draws a time from 1970 to 2100, mostly one around which the zone's clocks are set.
func drawTime(t *rapid.T, loc *time.Location) int64 {
	const from, to = 366 * 86400, 130 * 365 * 86400
	now := rapid.Int64Range(from, to).Draw(t, "now")
	if rapid.IntRange(0, 3).Draw(t, "change") > 0 {
		if _, until := time.Unix(now, 0).In(loc).ZoneBounds(); !until.IsZero() {
			now = until.Unix() + rapid.Int64Range(-26*3600, 26*3600).Draw(t, "around")
		}
	}
	return now*1e6 + rapid.Int64Range(0, 999_999).Draw(t, "us")
}

// allZones returns the names of all zones in Go's time zone database.
func allZones(t interface{ Fatal(args ...any) }) []string {
	names, err := zoneNames()
	if err != nil {
		t.Fatal(err)
	}
	return names
}

var zoneNames = sync.OnceValues(func() (names []string, err error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	r, err := zip.OpenReader(filepath.Join(strings.TrimSpace(string(root)), "lib", "time", "zoneinfo.zip"))
	if err != nil {
		return nil, err
	}
	for _, f := range r.File {
		if !strings.HasSuffix(f.Name, "/") {
			names = append(names, f.Name)
		}
	}
	return names, r.Close()
})

// What a counter costs must not depend on the zone: the window is kept until it ends.
func TestCalendarAllocatesOnlyAtItsEdges(t *testing.T) {
	p := calendarPolicy(t, day, zone(t, "Europe/Berlin"))
	var s storekit.State
	now := int64(epoch)
	if n := testing.AllocsPerRun(1000, func() {
		now++
		s, _ = storekit.Step(p, s, now, 1)
	}); n != 0 {
		t.Errorf("%g allocations a step", n)
	}
}

// One policy serves requests whose clocks differ.
func TestCalendarAnswersConcurrently(t *testing.T) {
	berlin := zone(t, "Europe/Berlin")
	shared := calendarPolicy(t, day, berlin)
	var wg sync.WaitGroup
	for i := range int64(4) {
		wg.Go(func() {
			own := calendarPolicy(t, day, berlin)
			for k := range int64(2000) {
				now := epoch + i + k*43_200_000_000
				if got, want := limit.Edges(shared, now), limit.Edges(own, now); !slices.Equal(got, want) {
					t.Errorf("at %d: %v, want %v", now, got, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

// Clocks that are utterly wrong get an answer, too.
func TestCalendarEndsAtNoTime(t *testing.T) {
	for _, name := range hardZones {
		for _, window := range calendarWindows {
			p := calendarPolicy(t, window, zone(t, name))
			for _, now := range []int64{math.MinInt64, -1 << 53, -1, 0, 1, 1 << 52, 1 << 53, math.MaxInt64} {
				var s storekit.State
				for range 3 {
					s, _ = storekit.Step(p, s, now, 1)
				}
				if e := limit.Edges(p, now); now > -1<<54 && now < 1<<54 && (e[1] > now || e[2] <= now) {
					t.Errorf("%s in %s at %d: %v", window, name, now, e)
				}
			}
		}
	}
}

func BenchmarkCalendar(b *testing.B) {
	for _, window := range []time.Duration{time.Hour, day, 30 * day} {
		p := calendarPolicy(b, window, zone(b, "Europe/Berlin"))
		b.Run(window.String()+"/within a window", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				limit.Edges(p, epoch)
			}
		})
		b.Run(window.String()+"/at an edge", func(b *testing.B) {
			b.ReportAllocs()
			now := int64(epoch)
			for b.Loop() {
				now = limit.Edges(p, now)[2]
				if now > epoch+60*31_536_000_000_000 {
					now = epoch
				}
			}
		})
	}
}
