package cli

import (
	"io"
	"os"
	"regexp"
)

// painted is a terminal that shows levels of findings, states, decisions and marks of diff in colour.
type painted struct{ io.Writer }

var levels = regexp.MustCompile(`(?m)^(\S+:\d+:\d+: |state +|response +|)` +
	`(?:(error:|not ready|OVER_LIMIT|- )|(warning:|degraded|~ )|(ready|OK|\+ ))`)

// Write implements io.Writer. In each match, only one of the last three groups is not empty.
func (p painted) Write(text []byte) (int, error) {
	_, err := p.Writer.Write(levels.ReplaceAll(text, []byte("$1\x1b[31m$2\x1b[33m$3\x1b[32m$4\x1b[0m")))
	return len(text), err
}

// inColors returns w, painted if it is a terminal and NO_COLOR is not set: https://no-color.org.
func inColors(w io.Writer) io.Writer {
	if f, ok := w.(*os.File); ok && isTerminal(f) && os.Getenv("NO_COLOR") == "" {
		return painted{w}
	}
	return w
}

// isTerminal reports whether f is a terminal that interprets escape sequences.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}
