//go:build !linux

package proctest

import (
	"testing"
	"time"
)

// Hung is a file that hangs.
type Hung struct{}

// Hang skips the test: only Linux has leases on files, by which one hangs.
func Hang(tb testing.TB, _ string) *Hung {
	tb.Helper()
	tb.Skip("not run: a file can only be made to hang on Linux")
	return nil
}

// Hangs is never called.
func (*Hung) Hangs() bool { return false }

// Await does nothing.
func (*Hung) Await(time.Duration) {}

// Release does nothing.
func (*Hung) Release() {}
