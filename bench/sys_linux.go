package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime returns the CPU time that a process has used, user and system. It reads the process's CPU clock, with a clock
// ID as in clock_getcpuclockid(3): in nanoseconds, while /proc/PID/stat has steps of 10 ms.
func cpuTime(pid int) (time.Duration, error) {
	const ofAllThreads = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|ofAllThreads), &ts); err != nil { //nolint:gosec // a pid is 22 bits
		return 0, err
	}
	return time.Duration(ts.Nano()), nil
}
