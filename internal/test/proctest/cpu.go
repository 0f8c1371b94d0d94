package proctest

import (
	"syscall"
	"testing"
	"time"
)

// CPU returns the CPU time of this process. Other programs on the machine affect it less than the elapsed time.
func CPU(tb testing.TB) time.Duration {
	tb.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
