package descriptors

import (
	"net/url"
	"strings"
)

// KeyTerms is what a counter's key says.
type KeyTerms struct {
	Algorithm string     `json:"algorithm"`       // with .interval or .redis_cell
	Limit     string     `json:"limit,omitempty"` // :name or #ordinal, and @rate/window of one that a request brought along
	Domain    string     `json:"domain"`
	Entries   []KeyEntry `json:"entries"`       // a value may be a pattern, or # and a hash
	Cut       bool       `json:"cut,omitempty"` // the key was too long: its end is a hash
}

// KeyEntry is an entry of a request, as far as the key shows it.
type KeyEntry struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// ParseKey reads what Limit.AppendKey wrote; ok is false for anything else. Braces that a store has put around what follows
// the first | are taken off. Of a key that was too long the last entry may be a part of one.
func ParseKey(key string) (terms KeyTerms, ok bool) {
	start, rest, ok := strings.Cut(key, "|")
	if !ok || start == "" {
		return KeyTerms{}, false
	}
	if inner, braced := strings.CutPrefix(rest, "{"); braced {
		rest = strings.TrimSuffix(inner, "}")
	}
	terms.Algorithm = start
	if i := strings.IndexAny(start, ":#@"); i >= 0 {
		terms.Algorithm, terms.Limit = start[:i], unescaped(start[i:])
	}
	parts := strings.Split(rest, "|")
	terms.Domain = unescaped(parts[0])
	for i, part := range parts[1:] {
		name, value, entry := strings.Cut(part, "=")
		last := i == len(parts)-2
		terms.Cut = last && len(key) >= maxKey && strings.Contains(part, "#")
		if !entry && !terms.Cut {
			return KeyTerms{}, false
		}
		terms.Entries = append(terms.Entries, KeyEntry{Key: unescaped(name), Value: unescaped(value)})
	}
	return terms, true
}

// unescaped undoes appendEscaped.
func unescaped(text string) string {
	if plain, err := url.PathUnescape(text); err == nil {
		return plain
	}
	return text // cut within
}
