package proctest

import "syscall"

// dieWithParent makes the kernel kill the child when the test binary dies, which a time-out's panic does
// without running any cleanup.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
