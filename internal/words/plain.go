package words

import (
	"bytes"
	"fmt"
	"io"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Plain is a writer for terminals that escapes invisible characters as JSON does, such as \u001b, except newlines and
// tabs. So text from rule files, requests and servers cannot move the cursor, or colour or reorder other text. Invalid
// UTF-8 becomes U+FFFD. A character must not be split between two calls of Write.
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

// Line returns text as Plain writes it, but also escapes newlines and tabs, so that the text stays on one line.
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
