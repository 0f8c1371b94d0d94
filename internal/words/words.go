// Package words formats names and text for messages, corrects misspelt names, and parses durations with days and weeks.
package words

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Shown returns a name from a rule file or a request for use in a message. It shortens a long name, and quotes an empty
// name and a name with invisible characters.
func Shown(name string) string {
	if name == "" || strings.ContainsFunc(name, func(c rune) bool { return !unicode.IsPrint(c) }) {
		return strconv.Quote(Shorten(name))
	}
	return Shorten(name)
}

// Shorten cuts a text after 60 bytes.
func Shorten(text string) string {
	if len(text) > 60 {
		return strings.ToValidUTF8(text[:60], "") + "..."
	}
	return text
}

// Nearest returns the known name that is most similar to the written name, or "" if no known name is similar.
func Nearest(written string, known []string) (best string) {
	distance := 1 + max(1, (len(written)+1)/3) // allows two swapped letters, which are two edits, in a word of five
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

// Distance returns the minimum number of insertions, deletions and replacements of bytes that turn a into b.
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

// DurationForm describes the form of a duration, for messages.
const DurationForm = "write it like 90s, 1h30m, 1d or 2w"

// longestDuration is the maximum length of a duration's text, in bytes.
const longestDuration = 100

// daysAndWeeks matches the parts of a duration that time.ParseDuration does not accept.
var daysAndWeeks = regexp.MustCompile(`[0-9.]+[dw]`)

// ParseDuration parses a duration in Go's syntax, in which d also means 24 hours and w 7 days, such as 90s, 1h30m, 1.5d
// and 1d12h. The error describes the valid form.
func ParseDuration(text string) (time.Duration, error) {
	inHours := text
	if len(text) <= longestDuration && strings.ContainsAny(text, "dw") {
		inHours = daysAndWeeks.ReplaceAllStringFunc(text, func(part string) string {
			number, hours := part[:len(part)-1], 24
			if strings.HasSuffix(part, "w") {
				hours = 7 * 24
			}
			return strings.Repeat(number+"h", hours) // time.ParseDuration adds them up
		})
	}
	d, err := time.ParseDuration(inHours)
	if len(text) > longestDuration || err != nil {
		return 0, fmt.Errorf("%q is not a duration: %s", Shorten(text), DurationForm)
	}
	return d, nil
}
