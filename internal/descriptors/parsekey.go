package descriptors

import (
	"net/url"
	"strings"
	"unicode/utf8"
)

// KeyTerms is what a counter's key says.
type KeyTerms struct {
	Algorithm string `json:"algorithm"` // with .interval or .redis_cell
	// Limit is :name or /window, and #ordinal, or @window of a limit that a request brought along.
	Limit   string  `json:"limit,omitempty"`
	Domain  string  `json:"domain"`
	Entries []Entry `json:"entries"`       // a value may be a pattern, or # and a hash
	Cut     bool    `json:"cut,omitempty"` // the key was too long: its end is a hash
}

// ParseKey reads what Limit.AppendKey wrote; ok is false for anything else. Braces that a store has put around what
// follows the first | are taken off. Of a key that was too long the last entry, the domain or the limit may be a part
// of one.
func ParseKey(key string) (terms KeyTerms, ok bool) {
	start, rest, hasDomain := strings.Cut(key, "|")
	if inner, braced := strings.CutPrefix(rest, "{"); braced {
		rest = strings.TrimSuffix(inner, "}")
	}
	size := len(start)
	if hasDomain {
		size += 1 + len(rest)
	}
	parts := strings.Split(rest, "|")
	terms.Cut = size >= shortestCut && size <= maxKey && endsWithHash(key, parts[len(parts)-1])
	if start == "" || !hasDomain && !terms.Cut {
		return KeyTerms{}, false
	}
	terms.Algorithm = start
	if i := strings.IndexAny(start, ":#@/"); i >= 0 {
		terms.Algorithm, terms.Limit = start[:i], unescaped(start[i:])
	}
	terms.Domain = unescaped(parts[0])
	for i, part := range parts[1:] {
		name, value, entry := strings.Cut(part, "=")
		if !entry && (!terms.Cut || i < len(parts)-2) {
			return KeyTerms{}, false
		}
		terms.Entries = append(terms.Entries, Entry{Key: unescaped(name), Value: unescaped(value)})
	}
	return terms, true
}

// shortestCut is how long a key that was cut is at least: see readableCut, which may go back to the start of a
// character, and then of a %XX.
const shortestCut = maxKey - (utf8.UTFMax - 1) - len("%X")

// endsWithHash reports whether the key, or its last part, ends with the hash of a key that was cut, and not of a value.
// A key that was cut right behind an = looks as if it had the hash of a value.
func endsWithHash(key, last string) bool {
	if last == "" {
		last = key
	}
	from := len(last) - 2*hashBytes
	if from < 1 || last[from-1] != '#' || strings.Trim(last[from:], "0123456789abcdef") != "" {
		return false
	}
	name, _, entry := strings.Cut(last[:from-1], "=")
	isValue := entry && (len(name)+1 == from-1 || strings.HasPrefix(last[len(name)+1:], "*#"))
	return !isValue
}

// unescaped undoes appendEscaped.
func unescaped(text string) string {
	if plain, err := url.PathUnescape(text); err == nil {
		return plain
	}
	return text // cut within
}
