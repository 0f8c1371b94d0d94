// Package conns bounds the resources that clients of a listener can occupy: connections, the memory of requests without
// a response and of incomplete responses, and resets. For a gRPC server it also follows the HTTP/2 frames on each
// connection. A request costs no timer. See docs/adr/0041.
//
// A Guard enforces the bounds of one listener. Listen wraps the listener and returns connections of type Conn. The
// server reads from the Conn, or, for HTTP/2, from an http2Conn, which follows the frames. The Guard's sweep closes
// slow connections. A request that is longer than the first window of its stream waits until the Budget admits it
// (window.go), and a connection with many complete requests is not read from (http2Conn.ready).
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

// Reason is the reason for closing a connection, and a metric label.
type Reason int

// The reasons.
const (
	// Full: a new connection was closed at once, because all others had been used within the last second, and no host had
	// more than twice as many connections as the new one's host.
	Full Reason = iota
	// Idle: an idle connection was closed to make room for a new one.
	Idle
	// Slow: a request did not arrive completely in time.
	Slow
	// Memory: the Budget was exceeded.
	Memory
	// Resets: the client reset too many requests per second.
	Resets
	// Unread: the client did not read the bytes that the server sent.
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
	// Max is the maximum number of open connections; at least 1.
	Max int
	// Budget bounds the memory that clients occupy; required.
	Budget *Budget
	// HTTP2 has the bounds within a connection of a gRPC server; nil for any other server.
	HTTP2 *HTTP2
	// Log receives at most one line about refused clients in ten seconds.
	Log *slog.Logger
}

// HTTP2 has the bounds within one connection.
type HTTP2 struct {
	// ReceiveTimeout is the maximum time from a request's headers to its last byte. In a stream of several messages it
	// bounds the time of each message.
	ReceiveTimeout time.Duration
	// MaxResets is the maximum number of requests that one connection may reset per second.
	MaxResets int
	// WriteTimeout is the time for which a client may leave written bytes unread.
	WriteTimeout time.Duration
	// UserTimeout is the time for which sent bytes may stay unacknowledged (TCP_USER_TIMEOUT, on Linux).
	UserTimeout time.Duration
}

const (
	// busyFor is the time after its use for which isSafe may protect a connection from being closed for a new one.
	busyFor = time.Second
	// maxLooked is the maximum number of connections that idlest examines, which bounds the cost of a new connection.
	maxLooked = 512
	// cutFor is the time for which a host whose connection exceeded the Budget cannot connect. Meanwhile the server frees
	// the closed connection, whose memory and CPU time are not counted.
	cutFor = time.Second
	// logQuiet is the minimum interval between two log lines about refused clients.
	logQuiet = 10 * time.Second
	// maxSweepPause is the maximum interval between two sweeps, and so the resolution of the guard's clock.
	maxSweepPause = 250 * time.Millisecond
	// firstResets is the part of HTTP2.MaxResets that a new connection may use at once: the share of one sweep interval,
	// so that a client gains little by reconnecting.
	firstResets = 0.25
)

// Guard enforces the bounds of one listener. It is safe for concurrent use.
type Guard struct {
	o     Options
	start time.Time
	clock atomic.Int64 // milliseconds since start at the last sweep

	refused [reasons]atomic.Uint64
	line    logging.Every // limits the log lines about refused clients

	mu    sync.Mutex
	conns map[*Conn]struct{}
	hosts map[string]int   // number of connections by host
	cut   map[string]int64 // time when a connection of a host exceeded the Budget, by now; expires after cutFor
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

// now returns the milliseconds since start. With HTTP2 it is the time of the last sweep, to save reading the clock.
func (g *Guard) now() int64 {
	if g.o.HTTP2 != nil {
		return g.clock.Load()
	}
	return time.Since(g.start).Milliseconds()
}

// Stats are the numbers of a Guard's connections.
type Stats struct {
	// Open is the current number of connections, Max the maximum.
	Open, Max int
	// Refused counts closed connections, by Reason.
	Refused [reasons]uint64
}

// Stats returns the current numbers.
func (g *Guard) Stats() Stats {
	g.mu.Lock()
	s := Stats{Open: len(g.conns), Max: g.o.Max}
	g.mu.Unlock()
	for i := range s.Refused {
		s.Refused[i] = g.refused[i].Load()
	}
	return s
}

// Listen wraps l. With HTTP2 and encrypted, the server's credentials must call Decrypted.
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
			_ = raw.Close() // the connection was never used
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

// admit registers the connection. If there are too many connections, it closes an idle connection, or returns false if
// all are busy. It also returns false if the Budget has just closed a connection of the same host.
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

// cutHost records that the Budget closes a connection of the host.
func (g *Guard) cutHost(host string) {
	g.refuse(Memory, host)
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.cut) >= g.o.Max {
		clear(g.cut)
	}
	g.cut[host] = g.now()
}

// wasCut reports whether the Budget closed a connection of the host within cutFor. The caller must hold g.mu.
func (g *Guard) wasCut(host string) bool {
	at, ok := g.cut[host]
	if ok && g.now()-at > cutFor.Milliseconds() {
		delete(g.cut, host)
		return false
	}
	return ok
}

// idlest returns the connection to close for a new one from newcomer: a connection of the host with the most
// connections, if possible one without a request, else the least recently used one. It returns nil if none may be
// closed. It examines maxLooked connections. The caller must hold g.mu.
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

// isSafe reports whether a recently used connection stays open when the host newcomer opens one. A connection with a
// request is safe unless its host has more than twice as many connections as newcomer would have. A connection without
// a request is safe if its host has fewer connections than newcomer would have. So a host that occupies all
// connections, or keeps opening new ones, does not lock out others. The caller must hold g.mu.
func (g *Guard) isSafe(c *Conn, newcomer string) bool {
	has, wants := g.hosts[c.host], g.hosts[newcomer]+1
	if c.busy.Load() {
		return has <= 2*wants
	}
	return c.host != newcomer && has < wants
}

// compareIdle is positive if a should be closed rather than b. The caller must hold g.mu.
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

// accepted returns the Conn of an HTTP server's connection, or nil.
func accepted(conn net.Conn) *Conn {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	c, _ := conn.(*Conn)
	return c
}

// remove unregisters a connection. The caller must hold g.mu.
func (g *Guard) remove(c *Conn) {
	if _, ok := g.conns[c]; !ok {
		return
	}
	delete(g.conns, c)
	if g.hosts[c.host]--; g.hosts[c.host] == 0 {
		delete(g.hosts, c.host)
	}
}

// refuse counts a refusal, and logs it at most once in logQuiet.
func (g *Guard) refuse(why Reason, host string) {
	g.refused[why].Add(1)
	if _, ok := g.line.Allow(time.Now()); !ok {
		return
	}
	g.o.Log.LogAttrs(context.Background(), slog.LevelWarn,
		"a connection was closed to protect Weir, see weir_clients_refused_total",
		slog.String("listener", g.o.Name), slog.String("reason", why.String()), slog.String("client", host))
}

// sweepUntil sets the clock and closes stuck connections periodically until the channel is closed.
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
}

// Conn is an accepted connection of a Guard.
type Conn struct {
	net.Conn

	g     *Guard
	host  string
	used  atomic.Int64 // time of the last use, by Guard.now
	busy  atomic.Bool  // HTTP/1: has a request; HTTP/2: had a complete request
	http2 atomic.Pointer[http2Conn]

	mu       sync.Mutex
	memory   int64 // counted in the Budget, in bytes
	since    int64 // when memory was last 0, by Guard.now
	arriving int64 // bytes of requests that were admitted and have no response yet
	wanted   int   // number of requests that wait for free memory
	working  int64 // bytes of complete requests without a response
	answered sync.Cond
	isClosed bool // stops the counting
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

// cutOff closes the connection on the guard's behalf. The server's next Read returns an error.
func (c *Conn) cutOff() { _ = c.Close() } // the client gets no error message
