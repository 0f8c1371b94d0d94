package proctest

import (
	"syscall"
	"testing"
	"time"
)

// CPU is the processor time that this process has used so far. Other programs on the machine change it less than the
// time that passes.
func CPU(tb testing.TB) time.Duration {
	tb.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
