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

// exactSleep makes pause exact to a few microseconds on this thread, to which the goroutine must be locked.
func exactSleep() error { return unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) }

// pause blocks the thread, because the runtime's timers wait in whole milliseconds if the process is idle.
func pause(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil) // if it is interrupted, the caller checks the clock again
}
