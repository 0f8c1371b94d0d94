package proctest

import (
	"os"
	"testing"
)

// Replace writes a file as an editor does, so that who reads it finds the old text or the new one: it writes another
// file and renames it over the old one. An error fails the test; it may be called in any of its goroutines.
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
