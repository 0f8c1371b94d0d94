package descriptors

import (
	"fmt"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// timeZone finds a time zone by its name. It remembers those of a file, which many rules may name.
func (r *reader) timeZone(name string) (*time.Location, error) {
	if zone := r.zones[name]; zone != nil {
		return zone, nil
	}
	zone, err := time.LoadLocation(name)
	if err != nil || name == "" || zone == time.Local { // Local is another one on each machine
		return nil, fmt.Errorf("%q is not a known time zone: write its name in the IANA database, such as Europe/Berlin, or UTC", name)
	}
	if r.zones == nil {
		r.zones = map[string]*time.Location{}
	}
	r.zones[name] = zone
	return zone, nil
}

// checkCalendar checks that the calendar has windows as long as the limit's.
func (r *reader) checkCalendar(l *rateLimit) bool {
	if l.params.Algorithm != limiter.FixedWindow || l.params.Align != limiter.AlignCalendar {
		return true
	}
	const write = "write unit: hour, day, week, month or year"
	switch {
	case l.has("window"):
		instead := write
		if limiter.OnCalendar(l.window) {
			instead = "write unit: " + l.unit.String()
			if l.multiplier > 1 {
				instead += fmt.Sprintf(" and unit_multiplier: %d", l.multiplier)
			}
		}
		r.add(l.place("window"), "align: calendar goes with unit, not with window; %s", instead)
	case l.unit == UnitUnknown: // and that is said
		return true
	case l.unit < Hour:
		r.add(l.place("unit"), "align: calendar goes with unit: hour, day, week, month or year; write align: epoch, which is the same for a %s",
			l.unit)
	case l.multiplier > 1 && (l.unit != Month || !limiter.OnCalendar(l.params.Window)):
		r.add(l.place("unit_multiplier"), "align: calendar goes with one hour, day, week or year, or with 1, 2, 3, 4 or 6 months; "+
			"write one of those, or align: epoch")
	default:
		return true
	}
	return false
}
