// Package durations reads durations as people write them, in rule files, flags and requests.
package durations

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/words"
)

// Form says how a duration is written, for messages.
const Form = "write it like 90s, 1h30m, 1d or 2w"

// longest is the most bytes of a duration.
const longest = 100

// daysAndWeeks are the parts of a duration that Go does not know.
var daysAndWeeks = regexp.MustCompile(`[0-9.]+[dw]`)

// Parse reads a duration as Go writes it, and with d for 24 hours and w for 7 days: 90s, 1h30m, 1.5d, 1d12h. The error
// says what to write instead.
func Parse(text string) (time.Duration, error) {
	inHours := text
	if len(text) <= longest && strings.ContainsAny(text, "dw") {
		inHours = daysAndWeeks.ReplaceAllStringFunc(text, func(part string) string {
			number, hours := part[:len(part)-1], 24
			if strings.HasSuffix(part, "w") {
				hours = 7 * 24
			}
			return strings.Repeat(number+"h", hours) // which are added up
		})
	}
	d, err := time.ParseDuration(inHours)
	if len(text) > longest || err != nil {
		return 0, fmt.Errorf("%q is not a duration: %s", words.Shorten(text), Form)
	}
	return d, nil
}
