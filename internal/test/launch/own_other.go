//go:build !linux

package launch

import "syscall"

// ownGroup leaves the terminal's signals to the parent. Only Linux can also kill the child when the parent dies.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
