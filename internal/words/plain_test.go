package words_test

import (
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/words"
)

func TestPlain(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a\tb\nc é ░ 日":            "a\tb\nc é ░ 日",
		"\x1b[31mred\x00":          `\u001b[31mred\u0000`,
		"\u009b2J\u202egnp.exe":    `\u009b2J\u202egnp.exe`,
		"a\rb\u00a0c\ufeff\u200bd": `a\u000db\u00a0c\ufeff\u200bd`,
		"\x9b2J":                   "\ufffd2J", // C1 as one byte
		"\U000e0041":               `\udb40\udc41`,
	} {
		var got strings.Builder
		if n, err := (words.Plain{Writer: &got}).Write([]byte(text)); n != len(text) || err != nil || got.String() != want {
			t.Errorf("%q is written as %q, %d, %v, want %q", text, got.String(), n, err, want)
		}
	}
}
