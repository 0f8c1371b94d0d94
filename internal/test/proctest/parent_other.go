//go:build !linux

package proctest

import "syscall"

// dieWithParent asks for nothing: only Linux kills a child with its parent.
func dieWithParent() *syscall.SysProcAttr { return nil }
