package words

import (
	"bytes"
	"fmt"
	"io"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Plain is a writer for terminals: what rule files, requests and servers sent cannot move the cursor, colour or reorder
// text. It writes a character that cannot be seen, except a newline or a tab, as JSON escapes it: \u001b. What is no
// UTF-8 becomes U+FFFD, also a character of which two calls of Write have a part each.
type Plain struct{ io.Writer }

func (p Plain) Write(text []byte) (int, error) {
	if utf8.Valid(text) && !bytes.ContainsFunc(text, unseen) {
		return p.Writer.Write(text)
	}
	if _, err := io.WriteString(p.Writer, escape(string(text), unseen)); err != nil {
		return 0, err
	}
	return len(text), nil
}

// Line returns text as Plain writes it, with newlines and tabs escaped, too: for a line or a cell of a table.
func Line(text string) string {
	return escape(text, func(c rune) bool { return !unicode.IsPrint(c) })
}

func escape(text string, hidden func(rune) bool) string {
	var shown []byte
	for _, c := range text {
		if !hidden(c) {
			shown = utf8.AppendRune(shown, c)
			continue
		}
		for _, half := range utf16.Encode([]rune{c}) {
			shown = fmt.Appendf(shown, `\u%04x`, half)
		}
	}
	return string(shown)
}

func unseen(c rune) bool {
	return c != '\n' && c != '\t' && !unicode.IsPrint(c)
}
