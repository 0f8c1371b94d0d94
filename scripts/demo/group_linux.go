package main

import "syscall"

// ownGroup keeps the terminal's signals from a program. The kernel ends it should the demo be killed.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
