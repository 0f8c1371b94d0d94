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

// Budget bounds the memory that clients occupy on all connections of its Guards: incomplete requests, and responses
// that clients do not read. If the bound is exceeded, Budget closes the connection with the highest cost, and its Guard
// admits no connection of that host for a second. Complete requests without a response may take half as much in
// addition; if they take more, the server stops reading from connections. A Budget is safe for concurrent use.
type Budget struct {
	most   int64
	used   atomic.Int64
	mu     sync.Mutex // held while a connection to close is chosen
	guards []*Guard

	arriving atomic.Int64 // bytes of requests that were admitted and have no response yet
	wanted   atomic.Int64 // number of requests that wait for free memory
	working  atomic.Int64 // bytes of complete requests without a response
}

const (
	// requestCost is the memory of a complete request until its response, in bytes: a goroutine and gRPC's state of a
	// stream. decodedCost is the memory of each byte of its message.
	requestCost, decodedCost = 3 << 10, 8
	// freeWork is the memory of complete requests that each connection may have, whatever others have.
	freeWork = 16 << 10
	// minRequest is the size of the smallest requests, in bytes: HEADERS with 6 compressed fields.
	minRequest = 15
)

// NewBudget returns a Budget of most bytes.
func NewBudget(most int64) *Budget { return &Budget{most: most} }

// Used returns the memory that the budget counts now, in bytes.
func (b *Budget) Used() int64 { return b.used.Load() + b.working.Load() }

// room returns how many more bytes of complete requests the server may have.
func (b *Budget) room() int64 { return b.most/2 - b.working.Load() }

func (b *Budget) add(g *Guard) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.guards = append(b.guards, g)
}

// maxWaited bounds the time in Conn.cost, in milliseconds, because a busy connection rarely has no memory counted.
const maxWaited = 10_000

// enforce closes connections until the used memory is within the budget.
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
			return // the other connections are being closed
		}
		worst.g.cutHost(worst.host)
		worst.cutOff()
	}
}

// cost returns the connection's memory times the time since it was last 0. Requests that wait for free memory count
// only if, over all connections, they need more than half of the budget, because half is enough for one connection.
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

// take adds n bytes, which may be negative, to the connection's memory, unless the connection is closed.
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

// work adds n bytes, which may be negative, to the memory of the connection's complete requests without a response.
func (c *Conn) work(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isClosed {
		c.working += n
		c.g.o.Budget.working.Add(n)
		c.answered.Signal()
	}
}

// Work adds n complete gRPC requests with messages of size bytes. The caller adds -1 before the delay of a request and
// 1 after it, because --max-delayed bounds delayed requests. Work skips large messages: only their buffers count.
func Work(ctx context.Context, n int64, size int) {
	if c := connOf(ctx); c != nil && size <= largeMessage {
		c.work(n * (requestCost + decodedCost*int64(messageHead+size)))
	}
}

// free removes a closed connection's memory from the budget.
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
	b.working.Add(-c.working)
	c.memory, c.isClosed = 0, true
	c.answered.Signal()
}

func (c *Conn) closed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.isClosed
}

// account adds the streams' change to the budget and admits waiting requests. The caller must hold f.mu.
func (f *http2Conn) account() {
	s, c := &f.streams, f.c
	if s.wanted != c.wanted || s.arriving != c.arriving { // f.mu protects c.wanted and c.arriving, too
		c.mu.Lock()
		if !c.isClosed {
			b := c.g.o.Budget
			b.arriving.Add(s.arriving - c.arriving)
			b.wanted.Add(int64(s.wanted - c.wanted))
			c.wanted, c.arriving = s.wanted, s.arriving
		}
		c.mu.Unlock()
	}
	if s.working != 0 {
		c.work(s.working)
		s.working = 0
	}
	if s.change != 0 {
		c.take(s.change)
		s.change = 0
	}
	if s.wanted > 0 && f.admit() {
		f.account()
	}
}

// connKey is the context key of the *Conn that an HTTP request came on.
type connKey struct{}

// Serve makes an HTTP server report to the guard which connections have a request, and count the bytes of responses
// that wait for the client.
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

// Unwrap serves http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write counts the bytes of p until the client has read them. For a large response it counts at most a quarter of the
// budget, so that the response can be sent if no other response is being sent.
func (w *response) Write(p []byte) (int, error) {
	n := min(int64(len(p)), w.c.g.o.Budget.most/4)
	w.c.take(n)
	defer w.c.take(-n)
	return w.ResponseWriter.Write(p)
}

// Answer wraps a message of a gRPC server so that Codec counts its bytes. Responses below 4 KiB need no wrapping,
// because the memory that counts for each stream from its first HEADERS frame on covers them.
func Answer(ctx context.Context, message any) any {
	if c := connOf(ctx); c != nil {
		return answer{message: message, c: c}
	}
	return message
}

// connOf returns the connection of a gRPC request, or nil if no Guard accepted it.
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

// address is a client's address that carries the connection, for connOf.
type address struct {
	net.Addr
	c *Conn
}

// RemoteAddr implements net.Conn.
func (f *http2Conn) RemoteAddr() net.Addr { return address{f.Conn.RemoteAddr(), f.c} }

// serviceCost is the memory of a stream's goroutine and its stack, in bytes.
const serviceCost = 32 << 10

// Stream serves a stream whose messages Codec counts. If turn is not nil, the stream's goroutine counts, too, and each
// message holds a slot of turn from its receipt until its response is passed to gRPC.
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

// Codec returns a codec that counts the bytes of an Answer until gRPC has sent them.
func Codec(c encoding.CodecV2) encoding.CodecV2 { return codec{c} }

type codec struct{ encoding.CodecV2 }

// minCounted is the smallest buffer, in bytes, that gRPC returns to its pool; the return ends the counting.
const minCounted = 1<<10 + 1

// Marshal copies an Answer into a buffer of exact size, because gRPC's own buffers can be ten times as large.
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

// unsent is the buffer pool of counted buffers: gRPC returns a buffer to it after sending.
type unsent struct{ c *Conn }

// Get implements mem.BufferPool.
func (unsent) Get(n int) *[]byte {
	text := make([]byte, n)
	return &text
}

// Put implements mem.BufferPool.
func (u unsent) Put(text *[]byte) { u.c.take(-int64(cap(*text))) }
