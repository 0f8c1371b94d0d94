package descriptors

import (
	"errors"
	"fmt"
	"strings"

	"github.com/weir-ratelimit/weir/internal/words"
)

// ParseEntries parses a descriptor that people write: key=value,key=value, from the first entry to the last. A value
// may be empty and may contain =. A comma or backslash in a key or value, and = in a key, must follow a backslash.
func ParseEntries(text string) ([]Entry, error) {
	if text == "" {
		return nil, errors.New("a descriptor is missing; write key=value,key=value")
	}
	var entries []Entry
	for more := true; more; {
		var e Entry
		var end byte
		if e.Key, end, text = cutUnescaped(text, "=,"); end == '=' {
			e.Value, end, text = cutUnescaped(text, ",")
		} else if e.Key != "" {
			key := words.Shown(e.Key)
			return nil, fmt.Errorf("entry %d, %s, has no =; write %s=VALUE, or %s= for an empty value",
				len(entries)+1, key, key, key)
		}
		if e.Key == "" {
			return nil, fmt.Errorf("entry %d has no key; write key=value,key=value, and \\, for a comma in a value",
				len(entries)+1)
		}
		entries = append(entries, e)
		more = end != 0
	}
	return entries, nil
}

var (
	escapeKey   = strings.NewReplacer(`\`, `\\`, `,`, `\,`, `=`, `\=`)
	escapeValue = strings.NewReplacer(`\`, `\\`, `,`, `\,`)
)

// FormatEntries returns the text that ParseEntries parses. Each entry must have a key.
func FormatEntries(entries []Entry) string {
	parts := make([]string, len(entries))
	for i, e := range entries {
		parts[i] = escapeKey.Replace(e.Key) + "=" + escapeValue.Replace(e.Value)
	}
	return strings.Join(parts, ",")
}

// cutUnescaped cuts the text at the first byte of ends that does not follow a backslash. It removes backslashes before
// such bytes and before backslashes. end is the byte, or 0 at the end of the text.
func cutUnescaped(text, ends string) (part string, end byte, rest string) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '\\' && i+1 < len(text) && (text[i+1] == '\\' || strings.IndexByte(ends, text[i+1]) >= 0):
			i++
			b.WriteByte(text[i])
		case strings.IndexByte(ends, c) >= 0:
			return b.String(), c, text[i+1:]
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), 0, ""
}
