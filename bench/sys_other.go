//go:build !linux

package main

import (
	"errors"
	"syscall"
	"time"
)

func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func cpuTime(int) (time.Duration, error) {
	return 0, errors.New("the CPU time of a process is read on Linux only")
}

func exactSleep() error { return nil }

func pause(d time.Duration) { <-time.After(d) }
