package descriptors

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Unit is a unit of time with the name that Envoy and rule files use.
type Unit uint8

// The units, as in Envoy's RateLimitResponse.RateLimit.Unit.
const (
	UnitUnknown Unit = iota
	Second
	Minute
	Hour
	Day
	Week
	Month // 30 days
	Year  // 365 days
)

const day = 24 * time.Hour

var units = [...]struct {
	name     string
	duration time.Duration
}{
	UnitUnknown: {"unknown", 0},
	Second:      {"second", time.Second},
	Minute:      {"minute", time.Minute},
	Hour:        {"hour", time.Hour},
	Day:         {"day", day},
	Week:        {"week", 7 * day},
	Month:       {"month", 30 * day},
	Year:        {"year", 365 * day},
}

// String returns the unit's name in a rule file.
func (u Unit) String() string {
	if int(u) >= len(units) {
		return units[UnitUnknown].name
	}
	return units[u].name
}

// Duration returns the unit's length, 0 for UnitUnknown.
func (u Unit) Duration() time.Duration {
	if int(u) >= len(units) {
		return 0
	}
	return units[u].duration
}

// ParseUnit returns the unit of that name in upper or lower case. ok is false if there is none.
func ParseUnit(name string) (u Unit, ok bool) {
	for u = Second; u <= Year; u++ {
		if strings.EqualFold(name, u.String()) {
			return u, true
		}
	}
	return UnitUnknown, false
}

// UnitOf returns the largest unit of which the window is a multiple, and the factor.
func UnitOf(window time.Duration) (Unit, uint32) {
	for u := Year; u >= Second; u-- {
		n := window / u.Duration()
		if window%u.Duration() == 0 && n > 0 && n <= math.MaxUint32 {
			return u, uint32(n)
		}
	}
	return UnitUnknown, 0
}

// FormatDuration formats a duration as in a rule file, in short form: 1s, 1m30s, 7d.
func FormatDuration(d time.Duration) string {
	if d > 0 && d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// String returns the limit for people: "funnel: 10 per 1s, burst 20", with the position of its default.
func (l *Limit) String() string {
	text := l.Policy.Algorithm().String() + ": " + FormatRate(l.Policy, l.Reservation)
	if l.Default != "" {
		text += ", default of " + l.Default
	}
	return text
}

// FormatRate formats how much a policy admits: "10 per 1s, burst 20", or "3 at once". The reservation may be nil.
func FormatRate(p *limiter.Policy, r *Reservation) string {
	if p.Algorithm().CountsInFlight() {
		return fmt.Sprintf("%d at once", p.Limit())
	}
	text := fmt.Sprintf("%d per %s", p.Limit(), FormatDuration(p.Window()))
	switch {
	case p.Params().TimeZone != nil:
		text += ", calendar of " + p.Params().TimeZone.String()
	case p.Params().Burst > 0:
		text += fmt.Sprintf(", burst %d", p.Capacity())
	case p.Params().WarmUp > 0:
		text += ", warms up in " + FormatDuration(p.Params().WarmUp)
	}
	if wait := p.MaxWait(); wait > 0 {
		text += ", waits up to " + FormatDuration(wait)
	}
	return text + r.text()
}
