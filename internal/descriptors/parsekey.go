package descriptors

import (
	"net/url"
	"strings"
	"unicode/utf8"
)

// KeyTerms has the parts of a counter's key.
type KeyTerms struct {
	Algorithm string // name of the algorithm, with .interval or .redis_cell if the key has it
	// Limit is :name or /window, and #ordinal, or @window for a limit that a request carries.
	Limit   string
	Domain  string
	Entries []Entry // a value may be a pattern, or # and a hash
}

// ParseKey parses a key of Limit.AppendKey; ok is false for any other text. It removes braces that a store has put
// around the part after the first |. If the key was cut, its last part is incomplete and ends with a hash.
func ParseKey(key string) (terms KeyTerms, ok bool) {
	start, rest, hasDomain := strings.Cut(key, "|")
	if inner, braced := strings.CutPrefix(rest, "{"); braced {
		rest = strings.TrimSuffix(inner, "}")
	}
	parts := strings.Split(rest, "|")
	mayBeCut := len(start)+len("|")+len(rest) >= shortestCut
	if start == "" || !hasDomain && !mayBeCut {
		return KeyTerms{}, false
	}
	terms.Algorithm = start
	if i := strings.IndexAny(start, ":#@/"); i >= 0 {
		terms.Algorithm, terms.Limit = start[:i], unescaped(start[i:])
	}
	terms.Domain = unescaped(parts[0])
	for i, part := range parts[1:] {
		name, value, entry := strings.Cut(part, "=")
		if !entry && (!mayBeCut || i < len(parts)-2) {
			return KeyTerms{}, false
		}
		terms.Entries = append(terms.Entries, Entry{Key: unescaped(name), Value: unescaped(value)})
	}
	return terms, true
}

// shortestCut is the minimum length of a cut key, as readableCut may go back to the start of a character and of a %XX.
const shortestCut = maxKey - (utf8.UTFMax - 1) - len("%X")

func unescaped(text string) string {
	if plain, err := url.PathUnescape(text); err == nil {
		return plain
	}
	return text // cut within a %XX
}
