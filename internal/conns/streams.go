package conns

import (
	"encoding/binary"
	"errors"
	"slices"
)

// The memory of a stream besides its payload, in bytes.
const (
	streamCost = 8 << 10 // a goroutine, and gRPC's state of a stream
	bufferCost = 128     // the header of a buffer
	// largeRequest is from when on a request counts until it is answered, in bytes: that of a message above 16 KiB.
	largeRequest = 28 << 10
)

// openStream is a stream that takes memory.
type openStream struct {
	id       uint32
	complete bool  // its request has arrived
	answered bool  // its answer has begun
	since    int64 // when its request, or a message of it, began or was let in, by Guard.now
	memory   int64 // bytes
	message  messageMeter

	window   window
	held     uint32 // bytes that gRPC has added to its window, and the client does not know
	admitted int32  // bytes of memory with which it was let in
	reserved int32  // those of them that have still to arrive
}

// openStreams are the streams of a connection that take memory: those whose request has not arrived completely, large
// requests without an answer, and those whose answer has begun and not ended. A request that arrives in one read and
// is answered in one write takes none.
type openStreams struct {
	list   []openStream // by ID
	change int64        // of their memory, not yet accounted

	wanted   int   // streams whose window is wanted
	arriving int64 // sum of admitted
}

// find returns the index of a stream, or where it belongs. Streams begin in order; usually it is the last one.
func (s *openStreams) find(id uint32) (i int, ok bool) {
	last := len(s.list) - 1
	if last < 0 || s.list[last].id < id {
		return last + 1, false
	}
	if s.list[last].id == id {
		return last, true
	}
	return slices.BinarySearchFunc(s.list, id, func(o openStream, id uint32) int { return int(o.id) - int(id) })
}

// get returns an open stream, or nil.
func (s *openStreams) get(id uint32) *openStream {
	if i, ok := s.find(id); ok {
		return &s.list[i]
	}
	return nil
}

// open returns the stream. Unless it is open, it begins now; complete says whether its request has arrived.
func (s *openStreams) open(id uint32, complete bool, now int64) *openStream {
	i, ok := s.find(id)
	if !ok {
		s.list = slices.Insert(s.list, i, openStream{id: id, complete: complete, since: now})
		s.grow(&s.list[i], streamCost)
	}
	return &s.list[i]
}

// drop removes a stream, if it is open.
func (s *openStreams) drop(id uint32) {
	if i, ok := s.find(id); ok {
		s.arrived(&s.list[i])
		s.change -= s.list[i].memory
		s.list = slices.Delete(s.list, i, i+1)
	}
}

// grow adds memory to a stream, unless it is nil.
func (s *openStreams) grow(o *openStream, by int64) {
	if o != nil {
		o.memory += by
		s.change += by
	}
}

// receive adds the memory of a DATA frame to a stream, unless it is nil or has it reserved.
func (s *openStreams) receive(o *openStream, cost int64) {
	if o == nil {
		return
	}
	reserved := min(int64(o.reserved), cost)
	o.reserved -= int32(reserved) //nolint:gosec // it has as much
	s.grow(o, cost-reserved)
}

// arrived ends what the stream needs for its request to arrive.
func (s *openStreams) arrived(o *openStream) {
	if o.window == windowWanted {
		o.window = windowOpen
		s.wanted--
	}
	s.arriving -= int64(o.admitted)
	o.admitted = 0
}

// read frees the messages of a stream that the server has read: if it answers, and more may come.
func (s *openStreams) read(o *openStream) {
	if o.answered && o.message.whole && !o.complete {
		s.arrived(o)
		s.grow(o, streamCost-o.memory)
		o.reserved = 0
	}
}

// requests follows the frames that a client sends.
type requests struct {
	cutter

	f         *http2Conn
	ending    uint32  // the stream whose request ends with this frame; 0: none
	data      uint32  // the stream whose messages this frame has, if more may come; 0: none
	completed int64   // requests that have arrived completely since feed has looked
	freePing  bool    // a request has begun since the last PING
	tokens    float64 // of resets: at most a second's
	tokensAt  int64   // when they were counted, by Guard.now
}

// errResets closes the connection.
var errResets = errors.New("the client resets too many requests a second")

// reset takes a token. It returns false if there is none.
func (r *requests) reset(now int64) bool {
	most := float64(r.f.h.MaxResets)
	r.tokens = min(most, r.tokens+most*float64(now-r.tokensAt)/1000) - 1
	r.tokensAt = now
	return r.tokens >= 0
}

// begin returns false if the client has reset too many requests. Frames that make the server work for nothing count as
// resets; a PING for each request does not, since grpc-go measures by it how fast answers come. f.mu is locked.
func (r *requests) begin(f frame, now int64) bool {
	r.ending, r.data = 0, 0
	streams, ends := &r.f.streams, f.has(flagEndStream)
	isReset := false
	switch f.kind {
	case frameHeaders:
		r.freePing = true
		if ends && f.has(flagEndHeaders) {
			r.ending = f.stream
		} else { // gRPC answers headers at once that end a request, so it is not marked here
			streams.grow(streams.open(f.stream, false, now), 2*int64(f.length))
		}
	case frameContinuation:
		streams.grow(streams.get(f.stream), 2*int64(f.length))
		isReset = f.length == 0
	case frameData:
		o := streams.get(f.stream)
		streams.receive(o, bufferSize(f.length))
		switch {
		case ends:
			r.ending = f.stream
		case !f.has(flagPadded):
			r.data = f.stream
		case o != nil && o.window == windowFirst: // Envoy pads nothing
			r.f.open(o)
		}
		isReset = f.length == 0 && !ends
	case frameReset:
		streams.drop(f.stream)
		r.f.answers.dropped(f.stream)
		isReset = true
	case frameWindowUpdate:
	case framePing:
		isReset = !f.has(flagAck) && !r.freePing
		r.freePing = r.freePing && f.has(flagAck)
	case frameSettings:
		isReset = !f.has(flagAck)
	default: // no gRPC server needs it
		isReset = true
	}
	return !isReset || r.reset(now)
}

// payload follows the messages of the request that the frame is of. f.mu is locked.
func (r *requests) payload(p []byte, now int64) {
	if r.data == 0 {
		return
	}
	streams := &r.f.streams
	o := streams.get(r.data)
	if o == nil {
		return
	}
	wasWhole := o.message.whole
	ended := o.message.feed(p)
	if ended || wasWhole {
		o.since = now
	}
	if ended {
		streams.read(o)
		r.completed++
	}
	r.f.judge(o)
}

// end completes the request that the frame ends. f.mu is locked.
func (r *requests) end() {
	if r.ending == 0 {
		return
	}
	r.completed++
	if o := r.f.streams.get(r.ending); o != nil {
		o.complete = true
		r.f.streams.grow(o, -int64(o.reserved))
		o.reserved = 0
		if !o.answered && o.memory < largeRequest {
			r.f.streams.drop(r.ending)
		}
	}
	r.ending = 0
}

// maxFrame is the most payload of a DATA frame, in bytes: gRPC announces it.
const maxFrame = 16 << 10

// bufferSize returns the memory that gRPC takes for the payload of a DATA frame.
func bufferSize(length int) int64 {
	switch {
	case length <= 1<<10:
		return int64(length) + bufferCost
	case length <= 4<<10:
		return 4<<10 + bufferCost
	default:
		return 16<<10 + bufferCost
	}
}

// answers follows the frames that the server sends. Between an answer's first HEADERS and its last, gRPC keeps what the
// client's flow-control windows do not admit.
type answers struct {
	cutter

	f *http2Conn
	// late are the latest streams that the client has reset, in order. An answer to one of them may begin, and does not
	// end.
	late []uint32
	// window is the stream that the frame is a WINDOW_UPDATE of, 0 without one; updates is where those begin that must
	// not be written.
	window  uint32
	updates []int
}

// maxLate is as many streams as an Envoy gives up at once: all that it may have open, see grpcserver.Config.
const maxLate = 1000

// dropped notes that the client has reset the stream.
func (a *answers) dropped(stream uint32) {
	if len(a.late) == maxLate {
		a.late = slices.Delete(a.late, 0, 1)
	}
	i, _ := slices.BinarySearch(a.late, stream)
	a.late = slices.Insert(a.late, i, stream)
}

func (a *answers) isLate(stream uint32) bool {
	_, ok := slices.BinarySearch(a.late, stream)
	return ok
}

// begin implements follower. f.mu is locked.
func (a *answers) begin(f frame, now int64) bool {
	switch {
	case f.kind == frameReset, f.kind == frameHeaders && f.has(flagEndStream):
		a.f.streams.drop(f.stream)
	case f.kind == frameHeaders && !a.isLate(f.stream):
		o := a.f.streams.open(f.stream, true, now)
		o.answered = true
		a.f.streams.read(o)
	case f.kind == frameWindowUpdate:
		a.window = f.stream
	}
	return true
}

// payload holds a WINDOW_UPDATE back whose stream has to wait. One that is written in two parts is let through.
func (a *answers) payload(p []byte, _ int64) {
	if a.window == 0 {
		return
	}
	o := a.f.streams.get(a.window)
	if o != nil && !o.complete && o.window != windowOpen && len(p) == 4 && a.at >= headerLen {
		o.held += binary.BigEndian.Uint32(p)
		a.updates = append(a.updates, a.at-headerLen)
	}
	a.window = 0
}

func (a *answers) end() {}

// Frames as RFC 9113 defines them.
const (
	prefaceLen = 24 // "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	headerLen  = 9

	frameData         = 0
	frameHeaders      = 1
	frameReset        = 3
	frameSettings     = 4
	framePing         = 6
	frameWindowUpdate = 8
	frameContinuation = 9

	flagEndStream  = 1 // of DATA and HEADERS
	flagEndHeaders = 4 // of HEADERS and CONTINUATION
	flagPadded     = 8 // of DATA
	flagAck        = 1 // of SETTINGS and PING
)

// frame is the head of a frame.
type frame struct {
	length      int // of its payload
	kind, flags byte
	stream      uint32
}

func (f *frame) has(flag byte) bool { return f.flags&flag != 0 }

// follower receives what a cutter finds.
type follower interface {
	begin(f frame, now int64) bool // false stops the cutter
	payload(p []byte, now int64)   // some of the frame's payload
	end()                          // the frame is complete
}

// cutter cuts the bytes of one direction into frames, however they arrive.
type cutter struct {
	preface int // bytes of the preface that are missing
	header  [headerLen]byte
	have    int   // bytes of header that have arrived
	skip    int   // bytes of the frame's payload that are missing
	at      int   // bytes before the payload, of those that are being cut
	began   int64 // when the frame began, by Guard.now
}

// inFrame reports whether a frame has begun and not ended.
func (c *cutter) inFrame() bool { return c.preface > 0 || c.have > 0 || c.skip > 0 }

// cut passes the frames in p to the follower. It returns false if the follower has stopped it.
func (c *cutter) cut(p []byte, now int64, to follower) bool {
	all := len(p)
	if c.preface > 0 {
		n := min(c.preface, len(p))
		c.preface, p = c.preface-n, p[n:]
	}
	for {
		if c.skip > 0 {
			n := min(c.skip, len(p))
			c.at = all - len(p)
			to.payload(p[:n], now)
			c.skip, p = c.skip-n, p[n:]
			if c.skip > 0 {
				return true
			}
			to.end()
		}
		if len(p) == 0 {
			return true
		}
		if c.have == 0 {
			c.began = now
		}
		n := copy(c.header[c.have:], p)
		c.have, p = c.have+n, p[n:]
		if c.have < headerLen {
			return true
		}
		c.have = 0
		f := frame{
			length: int(binary.BigEndian.Uint32(c.header[:4]) >> 8), kind: c.header[3], flags: c.header[4],
			stream: binary.BigEndian.Uint32(c.header[5:]) &^ (1 << 31),
		}
		c.skip = f.length
		if !to.begin(f, now) {
			return false
		}
		if c.skip == 0 {
			to.end()
		}
	}
}

// messageMeter follows the gRPC messages of a stream in one direction: each has a prefix of 5 bytes, the last four of
// which are its length.
type messageMeter struct {
	prefix [5]byte
	have   uint8  // bytes of prefix that have arrived
	size   uint32 // bytes of the message
	left   uint32 // bytes of the message that are missing
	whole  bool   // a message has arrived, and no other has begun
}

func (m *messageMeter) hasPrefix() bool { return int(m.have) == len(m.prefix) }

// feed follows some of a stream's payload. It reports whether a message ended in it.
func (m *messageMeter) feed(p []byte) (ended bool) {
	for {
		if m.hasPrefix() {
			n := uint32(min(int64(m.left), int64(len(p)))) //nolint:gosec // left is one
			m.left, p = m.left-n, p[n:]
			if m.left > 0 {
				return ended
			}
			m.have, m.whole, ended = 0, true, true
		}
		if len(p) == 0 {
			return ended
		}
		n := copy(m.prefix[m.have:], p)
		m.have, m.whole, p = m.have+uint8(n), false, p[n:] //nolint:gosec // at most 5
		if m.hasPrefix() {
			m.size = binary.BigEndian.Uint32(m.prefix[1:])
			m.left = m.size
		}
	}
}
