package descriptors

import (
	"errors"
	"fmt"
	"strings"
)

// ParseEntries reads a descriptor as people write it: key=value,key=value, from the first entry to the last. A value may be
// empty, and may have any further =. A comma or a backslash that belongs to a key or value has a
// backslash before it.
func ParseEntries(text string) ([]Entry, error) {
	var entries []Entry
	for i, part := range splitUnescaped(text) {
		key, value, ok := strings.Cut(part, "=")
		if !ok && part != "" {
			return nil, fmt.Errorf("entry %d, %s, has no =; write %s=VALUE, or %s= for an empty value", i+1, shown(part), shown(part), shown(part))
		}
		if key == "" {
			return nil, fmt.Errorf("entry %d has no key; write key=value,key=value, and \\, for a comma in a value", i+1)
		}
		entries = append(entries, Entry{Key: key, Value: value})
	}
	if len(entries) == 0 {
		return nil, errors.New("a descriptor is missing; write key=value,key=value")
	}
	return entries, nil
}

// FormatEntries is the text that ParseEntries reads.
func FormatEntries(entries []Entry) string {
	escape := strings.NewReplacer(`\`, `\\`, `,`, `\,`)
	parts := make([]string, len(entries))
	for i, e := range entries {
		parts[i] = escape.Replace(e.Key) + "=" + escape.Replace(e.Value)
	}
	return strings.Join(parts, ",")
}

// splitUnescaped splits at commas without a backslash before them, and takes the backslashes away.
func splitUnescaped(text string) (parts []string) {
	if text == "" {
		return nil
	}
	var part strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && i+1 < len(text) && (text[i+1] == ',' || text[i+1] == '\\'):
			i++
			part.WriteByte(text[i])
		case c == ',':
			parts = append(parts, part.String())
			part.Reset()
		default:
			part.WriteByte(c)
		}
	}
	return append(parts, part.String())
}
