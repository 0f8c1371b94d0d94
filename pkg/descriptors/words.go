package descriptors

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// String returns the limit for people: "funnel: 10 per 1s, burst 20".
func (l *Limit) String() string {
	return l.Policy.Algorithm().String() + ": " + FormatRate(l.Policy)
}

// FormatRate writes how much a policy lets pass: "10 per 1s, burst 20", or "3 at once".
func FormatRate(p *limiter.Policy) string {
	if p.Algorithm().CountsInFlight() {
		return fmt.Sprintf("%d at once", p.Limit())
	}
	text := fmt.Sprintf("%d per %s", p.Limit(), FormatDuration(p.Window()))
	switch {
	case p.Params().TimeZone != nil:
		text += ", calendar of " + p.Params().TimeZone.String()
	case p.Algorithm().Has("burst"):
		text += fmt.Sprintf(", burst %d", p.Capacity())
	case p.Params().WarmUp > 0:
		text += ", warms up in " + FormatDuration(p.Params().WarmUp)
	}
	if wait := p.MaxWait(); wait > 0 {
		text += ", waits up to " + FormatDuration(wait)
	}
	return text
}

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
