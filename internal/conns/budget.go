package conns

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
)

// Budget bounds the memory of everything that waits for clients, on all connections of its Guards: requests that have
// not arrived completely, and answers that clients do not read. If it is exceeded, the connection that takes the most
// memory for the longest time is closed, and its host gets no new one for a second. It is safe for concurrent use.
type Budget struct {
	most   int64
	used   atomic.Int64
	mu     sync.Mutex // held while a connection is chosen
	guards []*Guard

	arriving   atomic.Int64 // bytes of requests that were let in and are not answered
	wanted     atomic.Int64 // requests that wait for room
	turns      sync.Mutex   // guards waiting
	waiting    []*http2Conn // connections with requests that wait for room, in the order of their turns
	hasWaiting atomic.Bool  // whether there are any
}

// NewBudget returns a Budget of so many bytes.
func NewBudget(most int64) *Budget { return &Budget{most: most} }

// Used returns the memory that waits for clients now, in bytes.
func (b *Budget) Used() int64 { return b.used.Load() }

func (b *Budget) add(g *Guard) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.guards = append(b.guards, g)
}

// maxWaited bounds how much the time counts in the choice of a connection, in milliseconds: a busy connection always
// has something that waits for a moment.
const maxWaited = 10_000

// enforce closes connections until the budget is kept.
func (b *Budget) enforce() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.used.Load() > b.most {
		var worst *Conn
		var most int64
		for _, g := range b.guards {
			g.mu.Lock()
			for c := range g.conns {
				if cost := c.cost(); cost > most {
					worst, most = c, cost
				}
			}
			g.mu.Unlock()
		}
		if worst == nil {
			return // the others are being closed
		}
		worst.g.cutHost(worst.host)
		worst.cutOff()
	}
}

// cost is the connection's memory times how long it has had some. What Weir lets wait costs nothing while it takes no
// more than half of the budget: that is enough for all requests of one connection.
func (c *Conn) cost() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	const waiting = streamCost + firstWindow
	memory, b := c.memory, c.g.o.Budget
	if waiting*b.wanted.Load() <= b.most/2 {
		memory = max(0, memory-waiting*int64(c.wanted))
	}
	return memory * (1 + min(c.g.now()-c.since, maxWaited))
}

// take counts n bytes more in the budget, or fewer if n is negative, until the connection is closed.
func (c *Conn) take(n int64) {
	b := c.g.o.Budget
	c.mu.Lock()
	if c.isClosed {
		n = 0
	}
	if c.memory == 0 {
		c.since = c.g.now()
	}
	c.memory += n
	isOver := b.used.Add(n) > b.most && n > 0
	c.mu.Unlock()
	if isOver {
		b.enforce()
	}
}

// free ends the counting of a closed connection.
func (c *Conn) free() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		return
	}
	b := c.g.o.Budget
	b.used.Add(-c.memory)
	b.arriving.Add(-c.arriving)
	b.wanted.Add(-int64(c.wanted))
	c.memory, c.isClosed = 0, true
}

func (c *Conn) closed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.isClosed
}

// account counts the change of the streams' memory. It reports whether a request may have to be let in. f.mu is locked.
func (f *http2Conn) account() (mayAdmit bool) {
	s, c := &f.streams, f.c
	if s.wanted != c.wanted || s.arriving != c.arriving { // f.mu guards them from changing
		c.mu.Lock()
		if !c.isClosed {
			b := c.g.o.Budget
			b.arriving.Add(s.arriving - c.arriving)
			b.wanted.Add(int64(s.wanted - c.wanted))
			c.wanted, c.arriving = s.wanted, s.arriving
		}
		c.mu.Unlock()
	}
	change := s.change
	if change != 0 {
		s.change = 0
		c.take(change)
	}
	return s.wanted > 0 || change < 0 && c.g.o.Budget.hasWaiting.Load()
}

// connKey is the key of the *Conn in the context of an HTTP request.
type connKey struct{}

// Serve has an HTTP server tell the guard which connections have a request, and how much of an answer waits for its
// client.
func (g *Guard) Serve(s *http.Server) {
	s.ConnState = func(conn net.Conn, state http.ConnState) {
		if c := accepted(conn); c != nil {
			c.busy.Store(state == http.StateActive)
		}
	}
	s.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, accepted(conn))
	}
	next := s.Handler
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(*Conn); ok && c != nil {
			w = &response{w, c}
		}
		next.ServeHTTP(w, r)
	})
}

type response struct {
	http.ResponseWriter
	c *Conn
}

// Unwrap is for http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write counts the bytes until the client has taken them. Of a large answer it counts a part of the budget, so that it
// can be sent if it is alone.
func (w *response) Write(p []byte) (int, error) {
	n := min(int64(len(p)), w.c.g.o.Budget.most/4)
	w.c.take(n)
	defer w.c.take(-n)
	return w.ResponseWriter.Write(p)
}

// Answer returns a message of a gRPC server in the form in which Codec counts it. Answers below 4 KiB need no counting:
// the memory of a stream, which is counted from its first HEADERS on, has room for them.
func Answer(ctx context.Context, message any) any {
	if c := connOf(ctx); c != nil {
		return answer{message: message, c: c}
	}
	return message
}

// connOf returns the connection of a gRPC request, nil without one.
func connOf(ctx context.Context) *Conn {
	if p, ok := peer.FromContext(ctx); ok {
		if a, ok := p.Addr.(address); ok {
			return a.c
		}
	}
	return nil
}

type answer struct {
	message any
	c       *Conn
}

// address is a client's address, by which Answer finds the connection.
type address struct {
	net.Addr
	c *Conn
}

// RemoteAddr implements net.Conn.
func (f *http2Conn) RemoteAddr() net.Addr { return address{f.Conn.RemoteAddr(), f.c} }

// serviceCost is the memory of a stream's goroutine and its stack, in bytes.
const serviceCost = 32 << 10

// Stream serves a stream whose messages Codec counts. Unless turn is nil, the stream's goroutine counts, too, and an
// answer is in turn from the moment when its question is received until it is handed to gRPC.
func Stream(s grpc.ServerStream, turn chan struct{}, serve func(grpc.ServerStream) error) error {
	counted := &stream{ServerStream: s, turn: turn}
	if c := connOf(s.Context()); c != nil && turn != nil {
		c.take(serviceCost)
		defer c.take(-serviceCost)
	}
	defer counted.leave()
	return serve(counted)
}

type stream struct {
	grpc.ServerStream
	turn    chan struct{}
	hasTurn bool
}

func (s *stream) leave() {
	if s.hasTurn {
		s.hasTurn = false
		<-s.turn
	}
}

func (s *stream) RecvMsg(m any) error {
	s.leave()
	err := s.ServerStream.RecvMsg(m)
	if err != nil || s.turn == nil {
		return err
	}
	select {
	case s.turn <- struct{}{}:
		s.hasTurn = true
		return nil
	case <-s.Context().Done():
		return s.Context().Err()
	}
}

func (s *stream) SendMsg(m any) error {
	s.leave()
	return s.ServerStream.SendMsg(Answer(s.Context(), m))
}

// Codec counts the bytes of an Answer until gRPC has sent them.
func Codec(c encoding.CodecV2) encoding.CodecV2 { return codec{c} }

type codec struct{ encoding.CodecV2 }

// minCounted is the smallest buffer in bytes that gRPC puts back into its pool, which ends the counting.
const minCounted = 1<<10 + 1

// Marshal copies an Answer into a buffer of its size: gRPC's own ones take up to ten times as much.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	a, ok := v.(answer)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	data, err := c.CodecV2.Marshal(a.message)
	if err != nil {
		return nil, err
	}
	defer data.Free()
	text := make([]byte, data.Len(), max(data.Len(), minCounted))
	data.CopyTo(text)
	a.c.take(int64(cap(text)))
	return mem.BufferSlice{mem.NewBuffer(&text, unsent{a.c})}, nil
}

// unsent is where gRPC puts a counted buffer back.
type unsent struct{ c *Conn }

// Get implements mem.BufferPool.
func (unsent) Get(n int) *[]byte {
	text := make([]byte, n)
	return &text
}

// Put implements mem.BufferPool.
func (u unsent) Put(text *[]byte) { u.c.take(-int64(cap(*text))) }
