//go:build unix

package app

import (
	"math"
	"syscall"
)

// maxFiles is how many file descriptors the process may have.
func maxFiles() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt32
	}
	return limit.Cur
}
