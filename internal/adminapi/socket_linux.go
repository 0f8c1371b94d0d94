package adminapi

import (
	"net"
	"os"
	"strconv"
	"strings"
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
	pid := ""
	err = raw.Control(func(fd uintptr) {
		if peer, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			uid, pid = int(peer.Uid), strconv.Itoa(int(peer.Pid)) // pid is 0 in a parent or sibling namespace
		}
	})
	// A process of a child namespace has further pids besides its pid here. The status is another process's if the peer
	// has handed on its connection and ended, and its pid is in use again.
	status, unreadable := os.ReadFile("/proc/" + pid + "/status")
	_, pids, isListed := strings.Cut(string(status), "\nNSpid:\t") // gVisor lists no pids
	return uid, err == nil && unreadable == nil && (!isListed || strings.HasPrefix(pids, pid+"\n"))
}
