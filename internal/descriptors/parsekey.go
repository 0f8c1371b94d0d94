package descriptors

import (
	"net/url"
	"strings"
	"unicode/utf8"
)

// KeyTerms is what a counter's key says.
type KeyTerms struct {
	Algorithm string // with .interval or .redis_cell
	// Limit is :name or /window, and #ordinal, or @window of a limit that a request brought along.
	Limit   string
	Domain  string
	Entries []Entry // a value may be a pattern, or # and a hash
}

// ParseKey reads what Limit.AppendKey wrote; ok is false for anything else. Braces that a store has put around what
// follows the first | are taken off. Of a key that was too long the last entry, the domain or the limit may be a part
// of one, with a hash.
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

// shortestCut is how long a key that was cut is at least: see readableCut, which may go back to the start of a
// character, and then of a %XX.
const shortestCut = maxKey - (utf8.UTFMax - 1) - len("%X")

// unescaped undoes appendEscaped.
func unescaped(text string) string {
	if plain, err := url.PathUnescape(text); err == nil {
		return plain
	}
	return text // cut within
}
