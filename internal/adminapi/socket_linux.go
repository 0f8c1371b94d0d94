package adminapi

import (
	"net"
	"syscall"
)

// peerUser returns the user of the process at the other end of a Unix socket. It returns false for another PID
// namespace, such as a container that shares this network or the machine itself, because the same number may be another
// user there. A user namespace shows unknown users as 65534, which is also the user of Weir's image.
func peerUser(conn net.Conn) (uid int, ok bool) {
	c, isRaw := conn.(syscall.Conn)
	if !isRaw {
		return 0, false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, false
	}
	err = raw.Control(func(fd uintptr) {
		if peer, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			uid, ok = int(peer.Uid), peer.Pid > 0
		}
	})
	return uid, ok && err == nil
}
