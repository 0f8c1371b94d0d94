package launch

import "syscall"

// ownGroup leaves the terminal's signals to the parent, and has the kernel kill the child when the parent dies: a
// test binary that times out panics and runs no cleanup.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
