package launch

import "syscall"

// ownGroup leaves the terminal's signals to the parent, and makes the kernel kill the child when the parent dies,
// because a test binary that times out panics without cleanup.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
