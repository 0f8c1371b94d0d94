//go:build !linux

package launch

import "syscall"

// ownGroup leaves the terminal's signals to the parent. Only Linux also ends the child with it.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
