package embedded

import (
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/internal/panics"
)

// handovers are the HTTP addresses of a module's instances. When a listener of Envoy is updated, the instance with the
// new flags starts while the one with the old flags still serves. Both may have the same address: connections go to the
// newest instance, and to an older one again when the newest has closed. It is safe for concurrent use.
type handovers struct {
	mu     sync.Mutex
	shared map[string]*sharedListener // by address
}

// sharedListener is a listener that several instances have.
type sharedListener struct {
	net.Listener

	of    *handovers
	addr  string
	parts []*listenerPart // the newest last; guarded by the lock of handovers
}

// listenerPart is an instance's part of a sharedListener.
type listenerPart struct {
	of          *sharedListener
	connections chan net.Conn
	closed      chan struct{}
	close       func() error
}

// listen returns a listener at the address, whether or not other instances have it. open opens one that nobody has.
func (h *handovers) listen(addr string, open func() (net.Listener, error)) (net.Listener, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.shared[addr]
	if s == nil {
		l, err := open()
		if err != nil {
			return nil, err
		}
		s = &sharedListener{Listener: l, of: h, addr: addr}
		if h.shared == nil {
			h.shared = map[string]*sharedListener{}
		}
		h.shared[addr] = s
		defer panics.Go("HTTP address", s.accept)
	}
	p := &listenerPart{of: s, connections: make(chan net.Conn), closed: make(chan struct{})}
	p.close = sync.OnceValue(func() error {
		close(p.closed)
		return s.drop(p)
	})
	s.parts = append(s.parts, p)
	return p, nil
}

// drop takes a part away, and closes the listener with the last one.
func (s *sharedListener) drop(p *listenerPart) error {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.parts = slices.DeleteFunc(s.parts, func(other *listenerPart) bool { return other == p })
	if len(s.parts) > 0 {
		return nil
	}
	delete(s.of.shared, s.addr)
	return s.Close()
}

// newest returns the part that gets connections, nil if all are closed.
func (s *sharedListener) newest() *listenerPart {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if len(s.parts) == 0 {
		return nil
	}
	return s.parts[len(s.parts)-1]
}

// acceptPause is how long nothing is accepted after an error: the process may have too many open files.
const acceptPause = 50 * time.Millisecond

// accept hands connections over until the listener is closed.
func (s *sharedListener) accept() {
	for {
		c, err := s.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			<-time.After(acceptPause)
		default:
			s.hand(c)
		}
	}
}

// hand gives a connection to the newest part that takes it.
func (s *sharedListener) hand(c net.Conn) {
	for p := s.newest(); p != nil; p = s.newest() {
		select {
		case p.connections <- c:
			return
		case <-p.closed:
		}
	}
	_ = c.Close() // nobody is left
}

// Accept implements net.Listener.
func (p *listenerPart) Accept() (net.Conn, error) {
	select {
	case c := <-p.connections:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *listenerPart) Close() error { return p.close() }

// Addr implements net.Listener.
func (p *listenerPart) Addr() net.Addr { return p.of.Addr() }
