// Package conns bounds what the clients of a listener can take: connections, requests that are half sent, bytes of
// them in memory, and resets. It wraps the listener, and counts frames as they are read from a connection; a request
// that arrives whole costs it no memory and no timer. docs/adr/0041-what-a-client-can-take.md says why it is built so.
package conns

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/logging"
)

// Reason says why a connection or a stream was refused. It is a label of a metric.
type Reason int

// The reasons.
const (
	// Full: a new connection was closed at once, since all others had a request now, or within the last second.
	Full Reason = iota
	// Idle: an idle connection was closed, since a new one needed its room.
	Idle
	// Slow: a request was reset, or its connection closed, since it had not arrived whole in time.
	Slow
	// Memory: requests that were half sent were reset, since all of those together took too much memory.
	Memory
	// Resets: a connection was closed, since its client reset too many requests a second.
	Resets
	// Unread: a connection was closed, since its client did not read what it was sent.
	Unread

	reasons
)

// String is the reason's label.
func (r Reason) String() string {
	return [...]string{"full", "idle", "slow", "memory", "resets", "unread"}[r]
}

// Reasons are all reasons, in order.
func Reasons() []Reason { return []Reason{Full, Idle, Slow, Memory, Resets, Unread} }

// Options are the bounds of one listener.
type Options struct {
	// Name is the listener's in the log: grpc or http.
	Name string
	// Max is the most connections at once; at least 1.
	Max int
	// HTTP2 bounds what happens within the connections of a gRPC server; nil for any other server.
	HTTP2 *HTTP2
	// Log has a line for what was refused, at most one in ten seconds.
	Log *slog.Logger
}

// HTTP2 bounds what happens within a connection.
type HTTP2 struct {
	// ReceiveTimeout is how long a request may take from its headers to its last byte.
	ReceiveTimeout time.Duration
	// MaxReceiving is the most memory of all requests that have not arrived whole, in bytes.
	MaxReceiving int64
	// MaxResets is the most requests that one connection may reset in a second.
	MaxResets int
	// WriteTimeout is how long a client may leave unread what it was sent.
	WriteTimeout time.Duration
	// UserTimeout is how long sent bytes may stay unacknowledged (TCP_USER_TIMEOUT, where the system has it).
	UserTimeout time.Duration
}

const (
	// busyFor is how long a connection that had a request is not closed in favour of another.
	busyFor = time.Second
	// logQuiet is the pause between two lines about refused clients.
	logQuiet = 10 * time.Second
	// maxPunished bounds the hosts that are remembered for their resets.
	maxPunished = 1024
)

// Guard keeps the bounds of one listener. It is safe for concurrent use.
type Guard struct {
	o     Options
	start time.Time
	clock atomic.Int64 // milliseconds since start as of the last sweep; see now

	receiving atomic.Int64 // memory of requests that have not arrived whole, in bytes
	refused   [reasons]atomic.Uint64
	line      logging.Every // about refused clients

	mu       sync.Mutex
	conns    map[*Conn]struct{}
	hosts    map[string]int   // connections by host
	punished map[string]int64 // until when a host's new connections begin with few resets
}

// New makes a Guard.
func New(o Options) *Guard {
	return &Guard{
		o: o, start: time.Now(), conns: map[*Conn]struct{}{}, hosts: map[string]int{}, punished: map[string]int64{},
		line: logging.Every{Interval: logQuiet},
	}
}

// now is milliseconds since the guard was made. With HTTP2 it is as of the last sweep: a request must not pay for a
// clock.
func (g *Guard) now() int64 {
	if g.o.HTTP2 != nil {
		return g.clock.Load()
	}
	return time.Since(g.start).Milliseconds()
}

// Stats is what a Guard has seen.
type Stats struct {
	// Open is the connections now, Max the most there may be.
	Open, Max int
	// Receiving is the memory of requests that have not arrived whole, in bytes.
	Receiving int64
	// Refused is by Reason.
	Refused [reasons]uint64
}

// Stats are as of now.
func (g *Guard) Stats() Stats {
	g.mu.Lock()
	s := Stats{Open: len(g.conns), Max: g.o.Max, Receiving: g.receiving.Load()}
	g.mu.Unlock()
	for i := range s.Refused {
		s.Refused[i] = g.refused[i].Load()
	}
	return s
}

// Listen bounds the connections that l accepts. With HTTP2, the frames of a connection are counted unless encrypted is
// set: then the server's credentials must be those that Credentials returns.
func (g *Guard) Listen(l net.Listener, encrypted bool) net.Listener {
	b := &listener{Listener: l, g: g, encrypted: encrypted, closed: make(chan struct{})}
	if g.o.HTTP2 != nil {
		go g.sweepUntil(b.closed)
	}
	return b
}

type listener struct {
	net.Listener

	g         *Guard
	encrypted bool
	once      sync.Once
	closed    chan struct{}
}

// Accept waits for a connection that may stay.
func (l *listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &Conn{Conn: raw, g: l.g, host: hostOf(raw.RemoteAddr())}
		if !l.g.admit(c) {
			_ = raw.Close() // it was never used
			continue
		}
		if h := l.g.o.HTTP2; h != nil {
			setUserTimeout(raw, h.UserTimeout)
			if !l.encrypted {
				return c.framed(c), nil
			}
		}
		return c, nil
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// hostOf is what connections are counted by: the address without its port.
func hostOf(addr net.Addr) string {
	host, _, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.Network() // a Unix socket, whose clients have no names
	}
	return host
}

// admit registers the connection, and closes another for it if there are too many. It is false if all others are busy.
func (g *Guard) admit(c *Conn) bool {
	c.used.Store(g.now())
	g.mu.Lock()
	var victim *Conn
	if len(g.conns) >= g.o.Max {
		if victim = g.idlest(); victim == nil {
			g.mu.Unlock()
			g.refuse(Full, c.host)
			return false
		}
		g.remove(victim)
	}
	g.conns[c] = struct{}{}
	g.hosts[c.host]++
	g.mu.Unlock()
	if victim != nil {
		g.refuse(Idle, victim.host)
		victim.cut()
	}
	return true
}

// idlest is the connection that is closed in favour of a new one: of the host that has the most, one that has no request,
// or else the one that was not used for the longest time. It is nil if all are busy. g is locked.
func (g *Guard) idlest() (found *Conn) {
	latest := g.now() - busyFor.Milliseconds()
	for c := range g.conns {
		if c.busy.Load() && c.used.Load() > latest {
			continue
		}
		if found == nil || g.compare(c, found) > 0 {
			found = c
		}
	}
	return found
}

// compare is positive if a is to be closed rather than b. g is locked.
func (g *Guard) compare(a, b *Conn) int {
	idle := func(c *Conn) int {
		if c.busy.Load() {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(g.hosts[a.host], g.hosts[b.host]), cmp.Compare(idle(a), idle(b)), cmp.Compare(b.used.Load(), a.used.Load()))
}

// ConnState is an http.Server's, by which the guard knows which connections have a request.
func (g *Guard) ConnState(conn net.Conn, state http.ConnState) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	if c, ok := conn.(*Conn); ok {
		c.busy.Store(state == http.StateActive)
	}
}

// remove forgets a connection. g is locked.
func (g *Guard) remove(c *Conn) {
	if _, ok := g.conns[c]; !ok {
		return
	}
	delete(g.conns, c)
	if g.hosts[c.host]--; g.hosts[c.host] == 0 {
		delete(g.hosts, c.host)
	}
}

// refuse counts, and logs now and then.
func (g *Guard) refuse(why Reason, host string) {
	g.refused[why].Add(1)
	if _, ok := g.line.Allow(time.Now()); !ok {
		return
	}
	g.o.Log.LogAttrs(context.Background(), slog.LevelWarn, "a bound on clients is reached, see weir_clients_refused_total",
		slog.String("listener", g.o.Name), slog.String("reason", why.String()), slog.String("client", host))
}

// punish has the next connections of a host begin with few resets: who was cut off must not begin afresh by connecting
// again.
func (g *Guard) punish(host string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	if len(g.punished) >= maxPunished {
		for host, until := range g.punished {
			if until <= now {
				delete(g.punished, host)
			}
		}
	}
	if len(g.punished) < maxPunished {
		g.punished[host] = now + time.Second.Milliseconds()
	}
}

// firstResets is how many resets a new connection of the host may begin with.
func (g *Guard) firstResets(host string) float64 {
	most := float64(g.o.HTTP2.MaxResets)
	g.mu.Lock()
	defer g.mu.Unlock()
	until, ok := g.punished[host]
	if !ok {
		return most
	}
	if until <= g.now() {
		delete(g.punished, host)
		return most
	}
	return min(most, max(10, most/50))
}
