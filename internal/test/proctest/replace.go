package proctest

import (
	"os"
	"testing"
)

// Replace writes a file as an editor does, so that a reader sees either the old or the new text, because it renames a
// new file over the old file. An error fails the test. Any goroutine of the test may call it.
func Replace(tb testing.TB, path, text string) {
	tb.Helper()
	err := os.WriteFile(path+"~", []byte(text), 0o600)
	if err == nil {
		err = os.Rename(path+"~", path)
	}
	if err != nil {
		tb.Error(err)
	}
}
