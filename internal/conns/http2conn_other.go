//go:build !linux

package conns

import (
	"net"
	"time"
)

// setUserTimeout does nothing on this system: keepalive ends a connection whose client is gone.
func setUserTimeout(net.Conn, time.Duration) {}

func readyToRead(f *http2Conn, _ net.Conn) net.Conn { return f }
