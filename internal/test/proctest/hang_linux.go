package proctest

import (
	"os"
	"syscall"
	"testing"
	"time"
)

// Hung is a regular file whose opening does not return, as on a file system that hangs: somebody has a write lease on
// it. Linux breaks a lease after 45 s (/proc/sys/fs/lease-break-time).
type Hung struct {
	tb   testing.TB
	file *os.File
}

// Hang makes the file hang until Release, or the end of the test. Nobody may have it open.
func Hang(tb testing.TB, path string) *Hung {
	tb.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		tb.Fatal(err)
	}
	h := &Hung{tb, f}
	if err := h.lease(syscall.F_WRLCK); err != nil {
		tb.Fatalf("lease on %s: %v", path, err)
	}
	tb.Cleanup(h.Release)
	return h
}

func (h *Hung) lease(kind uintptr) error {
	if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, h.file.Fd(), syscall.F_SETLEASE, kind); errno != 0 {
		return errno
	}
	return nil
}

// Hangs says whether somebody hangs.
func (h *Hung) Hangs() bool {
	h.tb.Helper()
	kind, _, errno := syscall.Syscall(syscall.SYS_FCNTL, h.file.Fd(), syscall.F_GETLEASE, 0)
	if errno != 0 {
		h.tb.Fatalf("lease: %v", errno)
	}
	return kind != syscall.F_WRLCK // it is being broken
}

// Await returns when somebody hangs. It fails the test if that takes longer than within.
func (h *Hung) Await(within time.Duration) {
	h.tb.Helper()
	for deadline := time.Now().Add(within); !h.Hangs(); {
		if time.Now().After(deadline) {
			h.tb.Fatalf("nobody has opened %s in %s", h.file.Name(), within)
		}
		time.Sleep(time.Millisecond)
	}
}

// Release lets whoever hangs go on.
func (h *Hung) Release() {
	if h.file == nil {
		return
	}
	_ = h.lease(syscall.F_UNLCK) // the kernel may have broken it
	_ = h.file.Close()           // nothing was written
	h.file = nil
}
