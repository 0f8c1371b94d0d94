//go:build !linux

package main

import "syscall"

// ownGroup keeps the terminal's signals from a program.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
