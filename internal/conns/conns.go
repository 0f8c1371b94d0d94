// Package conns bounds what the clients of a listener can take: connections, incomplete requests and answers, their
// memory, and resets. It wraps the listener. For a gRPC server it also follows the HTTP/2 frames that the server reads
// from and writes to each connection. A complete request with a complete answer costs it no memory and no timer.
// docs/adr/0041 has the reasons.
//
// A Guard keeps the bounds of one listener. Listen wraps the listener, whose connections are a Conn each. The server
// reads from the Conn, or, with HTTP/2, from an http2Conn, which follows the frames. The Guard's sweep
// closes what takes too long. A request that is longer than the first window of its stream waits until the Budget
// admits it (window.go).
package conns

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/internal/words"
)

// Reason is why a connection was closed. It is a label of a metric.
type Reason int

// The reasons.
const (
	// Full: a new connection was closed at once, since all others were used within the last second, and no host had more
	// than twice as many as the new one's.
	Full Reason = iota
	// Idle: an idle connection was closed to make room for a new one.
	Idle
	// Slow: a connection was closed, since a request did not arrive completely in time.
	Slow
	// Memory: a connection was closed, since the Budget was exceeded.
	Memory
	// Resets: a connection was closed, since its client reset too many requests a second.
	Resets
	// Unread: a connection was closed, since its client did not read what the server sent.
	Unread

	reasons
)

// String returns the reason's label.
func (r Reason) String() string {
	return [reasons]string{"full", "idle", "slow", "memory", "resets", "unread"}[r]
}

// Options are the bounds of one listener.
type Options struct {
	// Name is the listener's name in the log: grpc or http.
	Name string
	// Max is the most connections at once; at least 1.
	Max int
	// Budget bounds the memory of what waits for clients; required.
	Budget *Budget
	// HTTP2 bounds what happens within the connections of a gRPC server; nil for any other server.
	HTTP2 *HTTP2
	// Log receives a line about a refusal, at most one in ten seconds.
	Log *slog.Logger
}

// HTTP2 bounds what happens within a connection.
type HTTP2 struct {
	// ReceiveTimeout is how long a request may take from its headers to its last byte, or to that of its first message if
	// it has several, and each further message.
	ReceiveTimeout time.Duration
	// MaxResets is the most requests that one connection may reset in a second.
	MaxResets int
	// WriteTimeout is how long a client may leave unread what is written to its connection.
	WriteTimeout time.Duration
	// UserTimeout is how long sent bytes may stay unacknowledged (TCP_USER_TIMEOUT, on Linux).
	UserTimeout time.Duration
}

const (
	// busyFor is how long a connection that was used is safe from being closed for a new one: see Guard.isSafe.
	busyFor = time.Second
	// maxLooked bounds what a new connection costs while the table is full.
	maxLooked = 512
	// cutFor is how long a host whose connection exceeded the Budget gets no new one: that the server forgets the old one
	// takes memory and a CPU for a while, which count nowhere.
	cutFor = time.Second
	// logQuiet is the pause between two lines about refused clients.
	logQuiet = 10 * time.Second
	// maxSweepPause bounds the time between two sweeps, which is the resolution of the guard's clock.
	maxSweepPause = 250 * time.Millisecond
	// slowWrite is when a Write is slow, in milliseconds: the client does not read.
	slowWrite = 1000
	// firstResets is the part of HTTP2.MaxResets with which a connection begins, so that a client that was cut off gains
	// little by connecting again: those of a pause between two sweeps.
	firstResets = 0.25
)

// Guard keeps the bounds of one listener. It is safe for concurrent use.
type Guard struct {
	o     Options
	start time.Time
	clock atomic.Int64 // see now

	refused [reasons]atomic.Uint64
	line    logging.Every // about refused clients

	mu    sync.Mutex
	conns map[*Conn]struct{}
	hosts map[string]int   // connections by host
	cut   map[string]int64 // when a host's connection exceeded the Budget, by now; for cutFor
}

// New makes a Guard.
func New(o Options) *Guard {
	g := &Guard{
		o: o, start: time.Now(), conns: map[*Conn]struct{}{}, hosts: map[string]int{}, cut: map[string]int64{},
		line: logging.Every{Interval: logQuiet},
	}
	o.Budget.add(g)
	return g
}

// now returns the milliseconds since start. With HTTP2 it returns the time of the last sweep, so that a request need
// not read the clock.
func (g *Guard) now() int64 {
	if g.o.HTTP2 != nil {
		return g.clock.Load()
	}
	return time.Since(g.start).Milliseconds()
}

// Stats is what a Guard has seen.
type Stats struct {
	// Open is the number of connections now, Max the bound.
	Open, Max int
	// Refused counts closed connections, by Reason.
	Refused [reasons]uint64
}

// Stats returns the numbers as they are now.
func (g *Guard) Stats() Stats {
	g.mu.Lock()
	s := Stats{Open: len(g.conns), Max: g.o.Max}
	g.mu.Unlock()
	for i := range s.Refused {
		s.Refused[i] = g.refused[i].Load()
	}
	return s
}

// Listen bounds the connections that l accepts. With HTTP2 and encrypted, the server's credentials must call Decrypted.
func (g *Guard) Listen(l net.Listener, encrypted bool) net.Listener {
	b := &listener{Listener: l, g: g, encrypted: encrypted, closed: make(chan struct{})}
	if g.o.HTTP2 != nil {
		go panics.Restart(b.closed, "sweep of connections", func() { g.sweepUntil(b.closed) })
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

// Accept returns the next connection that the guard admits.
func (l *listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &Conn{Conn: raw, g: l.g, host: words.Client(raw.RemoteAddr())}
		if !l.g.admit(c) {
			_ = raw.Close() // nobody has used it
			continue
		}
		if h := l.g.o.HTTP2; h != nil {
			setUserTimeout(raw, h.UserTimeout)
			if !l.encrypted {
				return readyToRead(newHTTP2Conn(c, c), raw), nil
			}
		}
		return c, nil
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// admit registers the connection, unless one of its host was just cut off. If there are too many, it closes another
// one, or returns false if all others are busy.
func (g *Guard) admit(c *Conn) bool {
	c.used.Store(g.now())
	g.mu.Lock()
	if g.wasCut(c.host) {
		g.mu.Unlock()
		g.refuse(Memory, c.host)
		return false
	}
	var victim *Conn
	if len(g.conns) >= g.o.Max {
		if victim = g.idlest(c.host); victim == nil {
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
		victim.cutOff()
	}
	return true
}

// cutHost notes that the Budget cuts off a connection of the host.
func (g *Guard) cutHost(host string) {
	g.refuse(Memory, host)
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.cut) >= g.o.Max {
		clear(g.cut)
	}
	g.cut[host] = g.now()
}

// wasCut reports whether the Budget cut off a connection of the host lately. g is locked.
func (g *Guard) wasCut(host string) bool {
	at, ok := g.cut[host]
	if ok && g.now()-at > cutFor.Milliseconds() {
		delete(g.cut, host)
		return false
	}
	return ok
}

// idlest returns the connection to close for a new one of a host: of the host with the most connections, one without a
// request, else the one that was unused for the longest time. It returns nil if none may be closed. It looks at
// maxLooked connections. g is locked.
func (g *Guard) idlest(newcomer string) (found *Conn) {
	latest := g.now() - busyFor.Milliseconds()
	looked := 0
	for c := range g.conns { // in random order
		if looked++; looked > maxLooked {
			break
		}
		if c.used.Load() > latest && g.isSafe(c, newcomer) {
			continue
		}
		if found == nil || g.compareIdle(c, found) > 0 {
			found = c
		}
	}
	return found
}

// isSafe reports whether a connection that was used lately stays open when a host wants a new one: one with a request,
// unless its host has more than twice as many connections as the other would have, and one that waits for its first
// request, unless its host has as many. So a host that keeps all connections busy, or opens them all the time, does
// not keep others out. g is locked.
func (g *Guard) isSafe(c *Conn, newcomer string) bool {
	has, wants := g.hosts[c.host], g.hosts[newcomer]+1
	if c.busy.Load() {
		return has <= 2*wants
	}
	return c.host != newcomer && has < wants
}

// compareIdle is positive if a is to be closed rather than b. g is locked.
func (g *Guard) compareIdle(a, b *Conn) int {
	idle := func(c *Conn) int {
		if c.busy.Load() {
			return 0
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(g.hosts[a.host], g.hosts[b.host]),
		cmp.Compare(idle(a), idle(b)),
		cmp.Compare(b.used.Load(), a.used.Load()),
	)
}

// accepted returns the Conn of a connection of an HTTP server, or nil.
func accepted(conn net.Conn) *Conn {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	c, _ := conn.(*Conn)
	return c
}

// remove drops a connection. g is locked.
func (g *Guard) remove(c *Conn) {
	if _, ok := g.conns[c]; !ok {
		return
	}
	delete(g.conns, c)
	if g.hosts[c.host]--; g.hosts[c.host] == 0 {
		delete(g.hosts, c.host)
	}
}

// refuse counts a refusal, and logs it unless the log had a line in the last ten seconds.
func (g *Guard) refuse(why Reason, host string) {
	g.refused[why].Add(1)
	if _, ok := g.line.Allow(time.Now()); !ok {
		return
	}
	g.o.Log.LogAttrs(context.Background(), slog.LevelWarn, "a bound on clients is reached, see weir_clients_refused_total",
		slog.String("listener", g.o.Name), slog.String("reason", why.String()), slog.String("client", host))
}

// sweepUntil sets the clock, and closes connections that are stuck, until the channel is closed.
func (g *Guard) sweepUntil(closed <-chan struct{}) {
	pause := min(maxSweepPause, g.o.HTTP2.ReceiveTimeout/8)
	tick := time.NewTicker(max(pause, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-closed:
			return
		case <-tick.C:
			g.sweep()
		}
	}
}

func (g *Guard) sweep() {
	now := time.Since(g.start).Milliseconds()
	g.clock.Store(now)
	g.mu.Lock()
	all := slices.Collect(maps.Keys(g.conns))
	g.mu.Unlock()
	for _, c := range all {
		f := c.http2.Load()
		if f == nil {
			continue
		}
		if why, isStuck := f.stuck(now); isStuck {
			g.refuse(why, c.host)
			c.cutOff()
		}
	}
	if b := g.o.Budget; b.hasWaiting.Load() {
		b.admit(nil) // what a closed connection had is free
	}
}

// Conn is an accepted connection that counts against the bound.
type Conn struct {
	net.Conn

	g     *Guard
	host  string
	used  atomic.Int64 // when it was last used, by Guard.now
	busy  atomic.Bool  // HTTP/1: it has a request; HTTP/2: it had one
	http2 atomic.Pointer[http2Conn]

	mu       sync.Mutex
	memory   int64 // counted in the Budget, in bytes
	since    int64 // when memory was 0 last, by Guard.now
	arriving int64 // bytes of requests that were let in and are not answered
	wanted   int   // requests that wait for room
	isClosed bool  // nothing is counted any more
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
	c.free()
	return c.Conn.Close()
}

// cutOff closes the connection for the guard. The server's next Read returns an error.
func (c *Conn) cutOff() { _ = c.Close() } // there is nothing to tell this client
