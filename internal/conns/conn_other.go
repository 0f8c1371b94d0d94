//go:build !linux

package conns

import (
	"net"
	"time"
)

// setUserTimeout does nothing here: keepalive ends a connection whose client is gone.
func setUserTimeout(net.Conn, time.Duration) {}

type readiness struct{}

func rawReader(net.Conn, bool) *readiness { return nil }
