//go:build !linux

package conns

import (
	"net"
	"time"
)

// setUserTimeout does nothing on this system: keepalive ends a connection whose client is gone.
func setUserTimeout(net.Conn, time.Duration) {}

type readyReader struct{}

func newReadyReader(net.Conn, bool) *readyReader { return nil }
