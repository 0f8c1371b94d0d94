package words

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// DurationForm says how a duration is written, for messages.
const DurationForm = "write it like 90s, 1h30m, 1d or 2w"

// longestDuration is in bytes.
const longestDuration = 100

// daysAndWeeks are the parts of a duration that Go does not know.
var daysAndWeeks = regexp.MustCompile(`[0-9.]+[dw]`)

// ParseDuration reads a duration as Go writes it, and with d for 24 hours and w for 7 days: 90s, 1h30m, 1.5d, 1d12h.
// The error says what to write instead.
func ParseDuration(text string) (time.Duration, error) {
	inHours := text
	if len(text) <= longestDuration && strings.ContainsAny(text, "dw") {
		inHours = daysAndWeeks.ReplaceAllStringFunc(text, func(part string) string {
			number, hours := part[:len(part)-1], 24
			if strings.HasSuffix(part, "w") {
				hours = 7 * 24
			}
			return strings.Repeat(number+"h", hours) // which are added up
		})
	}
	d, err := time.ParseDuration(inHours)
	if len(text) > longestDuration || err != nil {
		return 0, fmt.Errorf("%q is not a duration: %s", Shorten(text), DurationForm)
	}
	return d, nil
}
