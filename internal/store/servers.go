package store

import (
	"fmt"
	"net"
	"sync"
)

// maxServers is the most servers with connections at once. Redis Cluster is made for up to 1,000.
const maxServers = 2000

// servers bounds the servers with connections: a broken node of a cluster can redirect each request to others. It is
// safe for concurrent use.
type servers struct {
	most int

	mu   sync.Mutex
	open map[string]int // connections of each address
}

// enter counts a connection to an address, unless that is one server too many.
func (s *servers) enter(addr string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[addr] == 0 && len(s.open) >= s.most {
		return fmt.Errorf("no connection to %s: %d servers have connections already; do nodes of the cluster redirect "+
			"to servers that are none of its nodes?", addr, s.most)
	}
	if s.open == nil {
		s.open = make(map[string]int)
	}
	s.open[addr]++
	return nil
}

// leave counts a connection that was closed, or could not be made.
func (s *servers) leave(addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[addr]--; s.open[addr] == 0 {
		delete(s.open, addr)
	}
}

// countedConn is a connection that is counted until it is closed.
type countedConn struct {
	net.Conn

	leave func()
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	c.leave()
	return c.Conn.Close()
}
