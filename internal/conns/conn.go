package conns

import (
	"net"
	"sync/atomic"
)

// Conn is an accepted connection that counts against the bound.
type Conn struct {
	net.Conn

	g     *Guard
	host  string
	used  atomic.Int64 // when it was last used, by Guard.now
	busy  atomic.Bool  // HTTP/1: it has a request; HTTP/2: it had one
	http2 atomic.Pointer[http2Conn]
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && c.g.o.HTTP2 == nil { // with HTTP/2, complete requests count as use
		c.used.Store(c.g.now())
	}
	return n, err
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if n > 0 && c.g.o.HTTP2 == nil {
		c.used.Store(c.g.now())
	}
	return n, err
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.g.mu.Lock()
	c.g.remove(c)
	c.g.mu.Unlock()
	if f := c.http2.Load(); f != nil {
		f.freeAll()
	}
	return c.Conn.Close()
}

// cutOff closes the connection for the guard. The server's next Read returns an error.
func (c *Conn) cutOff() { _ = c.Close() } // there is nothing to tell this client
