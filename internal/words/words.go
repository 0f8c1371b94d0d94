// Package words writes names of rule files and requests in messages, finds the name that was meant, and reads durations
// as people write them.
package words

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Shown returns a name of a rule file or a request as messages have it: short, and quoted if it has what cannot be
// seen.
func Shown(name string) string {
	if name == "" || strings.ContainsFunc(name, func(c rune) bool { return !unicode.IsPrint(c) }) {
		return strconv.Quote(Shorten(name))
	}
	return Shorten(name)
}

// Shorten cuts a text that would fill the screen.
func Shorten(text string) string {
	if len(text) > 60 {
		return strings.ToValidUTF8(text[:60], "") + "..."
	}
	return text
}

// Nearest returns the known name that is most like the one that was written, empty if none is like it.
func Nearest(written string, known []string) (best string) {
	distance := 1 + max(1, (len(written)+1)/3) // two letters swapped in a word of five are two edits
	for _, name := range known {
		if differs := len(name) - len(written); max(differs, -differs) >= distance {
			continue
		}
		if d := Distance(written, name); d < distance {
			best, distance = name, d
		}
	}
	return best
}

// Distance returns the number of insertions, deletions and replacements of a byte that make one name of the other.
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

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
