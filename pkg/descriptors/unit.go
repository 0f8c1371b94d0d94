package descriptors

import (
	"fmt"
	"math"
	"slices"
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
	return UnitUnknown, fmt.Errorf("%q is not a unit of time: use second, minute, hour, day, week, month or year%s", name, unitHint(name))
}

// unitSynonyms are what people write for a unit.
var unitSynonyms = map[string]Unit{
	"s": Second, "sec": Second, "secs": Second, "m": Minute, "min": Minute, "mins": Minute, "h": Hour, "hr": Hour, "hrs": Hour,
	"d": Day, "w": Week, "wk": Week, "mo": Month, "mon": Month, "y": Year, "yr": Year, "yrs": Year,
}

// unitMeant is the unit that a text seems to stand for: minutes, sec, monht.
func unitMeant(text string) Unit {
	text = strings.ToLower(strings.TrimSpace(text))
	if u, ok := unitSynonyms[text]; ok {
		return u
	}
	var names []string
	for u := Second; u <= Year; u++ {
		names = append(names, u.String())
	}
	meant := strings.TrimSuffix(text, "s")
	if len(text) <= 20 && !slices.Contains(names, meant) {
		meant = near(text, names)
	}
	return Unit(1 + slices.Index(names, meant)) //nolint:gosec // seven units, and UnitUnknown is 0
}

// unitHint says what was probably meant by what is no unit, empty if that is not known.
func unitHint(text string) string {
	if d, ok := durationOf(text); ok && d > 0 {
		if u, n := unitOf(d); n == 1 && u != UnitUnknown {
			return fmt.Sprintf("; did you mean unit: %s, or window: %s?", u, text)
		}
		return fmt.Sprintf("; did you mean window: %s?", text)
	}
	if u := unitMeant(text); u != UnitUnknown {
		return fmt.Sprintf("; did you mean %s?", u)
	}
	return ""
}

// durationHint says what was probably meant by what is no duration, empty if that is not known.
func durationHint(text string) string {
	if isSmallNumber(text) && text != "" {
		return fmt.Sprintf("; did you mean %ss?", text)
	}
	if u := unitMeant(text); u != UnitUnknown && len(text) > 1 {
		return fmt.Sprintf("; did you mean unit: %s?", u)
	}
	return ""
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
	d, ok := durationOf(text)
	if !ok {
		return 0, fmt.Errorf("%q is not a duration: write it like 90s, 1h30m, 1d or 2w%s", text, durationHint(text))
	}
	return d, nil
}

func durationOf(text string) (d time.Duration, ok bool) {
	if text == "" {
		return 0, false
	}
	var total time.Duration
	for rest := text; rest != ""; {
		number := strings.IndexFunc(rest, func(c rune) bool { return c != '.' && (c < '0' || c > '9') })
		if number <= 0 {
			return 0, false
		}
		end := strings.IndexFunc(rest[number:], func(c rune) bool { return c == '.' || c >= '0' && c <= '9' })
		if end < 0 {
			end = len(rest) - number
		}
		part, err := parsePart(rest[:number], rest[number:number+end])
		if err != nil || part > math.MaxInt64-total {
			return 0, false
		}
		total, rest = total+part, rest[number+end:]
	}
	return total, true
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
