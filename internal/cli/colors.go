package cli

import (
	"io"
	"os"
	"regexp"
)

// painted is a terminal that shows some words of a line in red, yellow or green: a level behind the position of a
// finding, a state, an answer, a mark of diff.
type painted struct{ io.Writer }

var levels = regexp.MustCompile(`(?m)^(\S+:\d+:\d+: |state +|answer +|)` +
	`(?:(error:|not ready|OVER_LIMIT|- )|(warning:|degraded|~ )|(ready|OK|\+ ))`)

// Write implements io.Writer. Only one of the three groups has a word.
func (p painted) Write(text []byte) (int, error) {
	_, err := p.Writer.Write(levels.ReplaceAll(text, []byte("$1\x1b[31m$2\x1b[33m$3\x1b[32m$4\x1b[0m")))
	return len(text), err
}

// inColors returns w, painted if it is a terminal and the user has not declined that: https://no-color.org.
func inColors(w io.Writer) io.Writer {
	if f, ok := w.(*os.File); ok && isTerminal(f) && os.Getenv("NO_COLOR") == "" {
		return painted{w}
	}
	return w
}

// isTerminal reports whether what is written to the file can be coloured and drawn over.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}
