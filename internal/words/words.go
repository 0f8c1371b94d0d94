// Package words writes names of rule files and requests in messages, finds the name that was meant, and reads durations
// as people write them.
package words

import (
	"strconv"
	"strings"
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
