//go:build !linux

package conns

import (
	"net"
	"time"
)

// setUserTimeout does nothing on this system; gRPC's keepalive closes a connection whose client does not respond.
func setUserTimeout(net.Conn, time.Duration) {}

func readyToRead(f *http2Conn, _ net.Conn) net.Conn { return f }
