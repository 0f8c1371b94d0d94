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
	var shown []byte
	for _, c := range string(text) {
		if !unseen(c) {
			shown = utf8.AppendRune(shown, c)
			continue
		}
		for _, half := range utf16.Encode([]rune{c}) {
			shown = fmt.Appendf(shown, `\u%04x`, half)
		}
	}
	if _, err := p.Writer.Write(shown); err != nil {
		return 0, err
	}
	return len(text), nil
}

func unseen(c rune) bool {
	return c != '\n' && c != '\t' && !unicode.IsPrint(c)
}
