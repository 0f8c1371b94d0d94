package descriptors

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Unit is a unit of time as Envoy and rule files name it.
type Unit uint8

// The units. Each has one of the same name in Envoy's RateLimitResponse.RateLimit.Unit.
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

// String is the unit's name in a rule file.
func (u Unit) String() string {
	if int(u) >= len(units) {
		return units[UnitUnknown].name
	}
	return units[u].name
}

// Duration is the unit's length; 0 for UnitUnknown.
func (u Unit) Duration() time.Duration {
	if int(u) >= len(units) {
		return 0
	}
	return units[u].duration
}

// ParseUnit returns the unit of that name, in any case.
func ParseUnit(name string) (Unit, error) {
	for u := Second; u <= Year; u++ {
		if strings.EqualFold(name, units[u].name) {
			return u, nil
		}
	}
	return UnitUnknown, fmt.Errorf("%q is not a unit of time: use second, minute, hour, day, week, month or year", name)
}

// unitOf is the largest unit that the window is a whole multiple of, and how many of it the window is.
func unitOf(window time.Duration) (Unit, uint32) {
	for u := Year; u >= Second; u-- {
		n := window / u.Duration()
		if window%u.Duration() == 0 && n > 0 && n <= math.MaxUint32 {
			return u, uint32(n)
		}
	}
	return UnitUnknown, 0
}

// parseDuration reads a duration as Go writes it, and with d for 24 hours and w for 7 days: 90s, 1h30m, 1.5d.
func parseDuration(text string) (time.Duration, error) {
	invalid := fmt.Errorf("%q is not a duration: write it like 90s, 1h30m, 1d or 2w", text)
	if text == "" {
		return 0, invalid
	}
	var total time.Duration
	for rest := text; rest != ""; {
		number := strings.IndexFunc(rest, func(c rune) bool { return c != '.' && (c < '0' || c > '9') })
		if number <= 0 {
			return 0, invalid
		}
		end := strings.IndexFunc(rest[number:], func(c rune) bool { return c == '.' || c >= '0' && c <= '9' })
		if end < 0 {
			end = len(rest) - number
		}
		part, err := parsePart(rest[:number], rest[number:number+end])
		if err != nil || part > math.MaxInt64-total {
			return 0, invalid
		}
		total, rest = total+part, rest[number+end:]
	}
	return total, nil
}

// parseSeconds reads a number of seconds, such as 2 or 0.5.
func parseSeconds(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text + "s")
	if err != nil {
		return 0, fmt.Errorf("%q is not a number of seconds: write it like 2 or 0.5", text)
	}
	return d, nil
}

// parseFactor reads a number from 1.01 to 100, such as 3 or 2.5, in hundredths.
func parseFactor(text string) (int64, error) {
	const most = limiter.MaxColdFactor
	v, err := strconv.ParseFloat(text, 64)
	hundredths := math.Round(v * 100)
	if err != nil || !(hundredths > 100 && hundredths <= most) || math.Abs(v*100-hundredths) > 1e-6 {
		return 0, fmt.Errorf("%q is not a number from 1.01 to %d with at most two decimals: write it like 3 or 2.5", text, most/100)
	}
	return int64(hundredths), nil
}

// parsePart reads one number and its unit.
func parsePart(number, unit string) (time.Duration, error) {
	hours := map[string]int64{"d": 24, "w": 7 * 24}[unit]
	if hours == 0 {
		return time.ParseDuration(number + unit)
	}
	d, err := time.ParseDuration(number + "h")
	if err == nil && d > time.Duration(math.MaxInt64/hours) {
		err = fmt.Errorf("%s%s is too long", number, unit)
	}
	return d * time.Duration(hours), err
}

// FormatDuration writes a duration as a rule file has it, as short as people do: 1s, 1m30s, 7d.
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
