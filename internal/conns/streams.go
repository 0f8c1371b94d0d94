package conns

import (
	"encoding/binary"
	"errors"
	"slices"
)

// Memory of a stream, in bytes.
const (
	streamCost = 8 << 10 // a goroutine, and gRPC's state of a stream
	bufferCost = 128     // the header of a buffer
	// largeRequest is the memory, in bytes, from which a request's buffers count until its response. Messages above
	// largeMessage do not count decodedCost, too, because the server decodes few of them at once.
	largeRequest, largeMessage = 28 << 10, 16 << 10
)

// openStream is a stream whose response has not ended.
type openStream struct {
	id       uint32
	complete bool  // the request has arrived
	answered bool  // the response has begun
	gone     bool  // the stream has ended
	isLarge  bool  // its message is longer than largeMessage
	since    int64 // when its request or latest message began or was admitted, by Guard.now
	memory   int64 // bytes
	work     int64 // bytes that count from when the request is complete until its response
	message  messageMeter

	window   window
	held     uint32 // bytes that gRPC has added to the stream's window without the client's knowledge
	admitted int32  // bytes of memory reserved when the request was admitted
	reserved int32  // bytes of admitted that have not arrived yet
}

// openStreams are the streams of a connection from their first frame to the end of their response. Their memory counts
// while the request is incomplete, while a large request has no response, and while the response is incomplete.
type openStreams struct {
	list    []openStream // by ID
	gone    int          // number of streams in list that have ended
	change  int64        // change of the streams' memory since account was called
	working int64        // change of the work of complete requests without a response since account was called

	wanted   int   // number of streams whose window is windowWanted
	arriving int64 // sum of admitted over the streams
}

// find returns the index of a stream, or the index to insert it at. The stream is usually the last one.
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

// get returns the stream with this ID, or nil.
func (s *openStreams) get(id uint32) *openStream {
	if i, ok := s.find(id); ok && !s.list[i].gone {
		return &s.list[i]
	}
	return nil
}

// open returns the stream with this ID, and adds it if it is new.
func (s *openStreams) open(id uint32, now int64) *openStream {
	i, ok := s.find(id)
	if !ok {
		s.list = slices.Insert(s.list, i, openStream{id: id, since: now, work: requestCost})
		s.grow(&s.list[i], streamCost)
	}
	return &s.list[i]
}

// drop ends the stream with this ID. It returns the work of a complete request without a response.
func (s *openStreams) drop(id uint32) (work int64) {
	o := s.get(id)
	if o == nil {
		return 0
	}
	if o.complete && !o.answered {
		work = o.work
	}
	s.arrived(o)
	s.change -= o.memory
	*o = openStream{id: id, complete: true, gone: true}
	if s.gone++; 2*s.gone >= len(s.list) { // removing each stream at once would move all later streams
		s.list, s.gone = slices.DeleteFunc(s.list, func(o openStream) bool { return o.gone }), 0
	}
	return work
}

// grow adds memory to o. It does nothing if o is nil.
func (s *openStreams) grow(o *openStream, by int64) {
	if o != nil {
		o.memory += by
		s.change += by
	}
}

// receive adds the memory of a DATA frame to o, except what o has reserved, unless o is nil or complete.
func (s *openStreams) receive(o *openStream, length int) {
	if o == nil || o.complete {
		return
	}
	o.work += decodedCost * int64(length)
	cost := bufferSize(length)
	reserved := min(int64(o.reserved), cost)
	o.reserved -= int32(reserved) //nolint:gosec // reserved is at most o.reserved
	s.grow(o, cost-reserved)
}

// arrived ends the wait and the reservation of a stream whose request has arrived.
func (s *openStreams) arrived(o *openStream) {
	if o.window == windowWanted {
		o.window = windowOpen
		s.wanted--
	}
	s.arriving -= int64(o.admitted)
	o.admitted = 0
}

// read frees the memory of complete messages of a stream whose response has begun and whose request has not ended.
func (s *openStreams) read(o *openStream) {
	if o.answered && o.message.whole && !o.complete {
		s.arrived(o)
		s.grow(o, streamCost-o.memory)
		o.reserved = 0
	}
}

// requests follows the frames that the client sends.
type requests struct {
	cutter

	f         *http2Conn
	ending    uint32  // ID of the stream whose request ends with this frame, or 0
	data      uint32  // ID of the stream that has messages in this frame and may send more, or 0
	completed bool    // whether a request has arrived completely since the last feed
	abandoned int64   // work of requests without a response that the client has reset since ready
	freePing  bool    // whether a request has begun since the last PING
	tokens    float64 // resets that are allowed now, at most HTTP2.MaxResets
	tokensAt  int64   // when tokens was updated, by Guard.now
}

// errResets closes the connection.
var errResets = errors.New("the client resets too many requests a second")

// reset takes a token. It returns false if none is left.
func (r *requests) reset(now int64) bool {
	most := float64(r.f.h.MaxResets)
	r.tokens = min(most, r.tokens+most*float64(now-r.tokensAt)/1000) - 1
	r.tokensAt = now
	return r.tokens >= 0
}

// begin returns false if the client has reset too many requests. Frames that only cause work for the server count as
// resets, except one PING per request, with which grpc-go estimates the bandwidth. The caller must hold f.mu.
func (r *requests) begin(f frame, now int64) bool {
	r.ending, r.data = 0, 0
	streams, ends := &r.f.streams, f.has(flagEndStream)
	isReset := false
	switch f.kind {
	case frameHeaders:
		r.freePing = true
		if ends && f.has(flagEndHeaders) {
			r.ending = f.stream
		}
		streams.grow(streams.open(f.stream, now), 2*int64(f.length))
	case frameContinuation:
		streams.grow(streams.get(f.stream), 2*int64(f.length))
		isReset = f.length == 0
	case frameData:
		o := streams.get(f.stream)
		streams.receive(o, f.length)
		switch {
		case ends:
			r.ending = f.stream
		case !f.has(flagPadded):
			r.data = f.stream
		case o != nil && o.window == windowFirst: // padded data, which Envoy does not send
			r.f.open(o)
		}
		isReset = f.length == 0 && !ends
	case frameReset:
		r.abandoned += streams.drop(f.stream)
		isReset = true
	case frameWindowUpdate:
	case framePing:
		isReset = !f.has(flagAck) && !r.freePing
		r.freePing = r.freePing && f.has(flagAck)
	case frameSettings:
		isReset = !f.has(flagAck)
	default: // frames that no gRPC server needs
		isReset = true
	}
	return !isReset || r.reset(now)
}

// payload follows the messages in a DATA frame. The caller must hold f.mu.
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
		r.completed = true
	}
	r.f.judge(o, ended)
}

// end completes the request that ends with this frame. The caller must hold f.mu.
func (r *requests) end() {
	if r.ending == 0 {
		return
	}
	r.completed = true
	s := &r.f.streams
	if o := s.get(r.ending); o != nil && !o.complete {
		o.complete = true
		s.grow(o, -int64(o.reserved))
		o.reserved = 0
		hasBuffers := o.memory >= largeRequest
		if hasBuffers && o.isLarge { // Work must skip all of these
			o.work = 0
		}
		if !o.answered {
			s.working += o.work
		}
		if !o.answered && !hasBuffers {
			s.arrived(o)
			s.grow(o, -o.memory)
		}
	}
	r.ending = 0
}

// maxFrame is the maximum payload of a DATA frame that gRPC announces, in bytes.
const maxFrame = 16 << 10

// bufferSize returns the memory, in bytes, that gRPC allocates for a DATA frame with this length of payload.
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

// answers follows the frames that the server sends. Between the first and the last HEADERS frame of a response, gRPC
// stores the bytes that the client's flow-control windows do not admit.
type answers struct {
	cutter

	f *http2Conn
	// window is the ID of the stream whose WINDOW_UPDATE frame is being cut, or 0. updates has the indexes, in the written
	// bytes, of WINDOW_UPDATE frames that must not reach the client yet.
	window  uint32
	updates []int
}

// begin implements follower. The caller must hold f.mu.
func (a *answers) begin(f frame, _ int64) bool {
	s := &a.f.streams
	switch {
	case f.kind == frameReset, f.kind == frameHeaders && f.has(flagEndStream):
		s.working -= s.drop(f.stream)
	case f.kind == frameHeaders:
		if o := s.get(f.stream); o != nil && !o.answered { // nil: the client has reset it
			o.answered = true
			s.grow(o, max(0, streamCost-o.memory))
			s.read(o)
			if o.complete {
				s.working -= o.work
			}
		}
	case f.kind == frameWindowUpdate:
		a.window = f.stream
	}
	return true
}

// payload marks a WINDOW_UPDATE frame for removal if its stream must wait, unless it is written in two parts.
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

// Frame types and flags of RFC 9113.
const (
	prefaceLen  = 24 // "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	headerLen   = 9
	messageHead = 5 // the prefix of a gRPC message

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

// frame is the header of a frame.
type frame struct {
	length      int // of its payload, in bytes
	kind, flags byte
	stream      uint32
}

func (f *frame) has(flag byte) bool { return f.flags&flag != 0 }

// follower receives the frames that a cutter finds.
type follower interface {
	begin(f frame, now int64) bool // the frame's header; false stops the cutter
	payload(p []byte, now int64)   // a part of the frame's payload
	end()                          // the frame is complete
}

// cutter cuts the bytes of one direction into frames, in whatever parts the bytes arrive.
type cutter struct {
	preface int // bytes of the preface that have not arrived
	header  [headerLen]byte
	have    int   // bytes of header that have arrived
	skip    int   // bytes of the frame's payload that have not arrived
	at      int   // index of the payload in the bytes that are being cut
	began   int64 // when the frame began, by Guard.now
}

// inFrame reports whether a part of a frame, or of the preface, has still to arrive.
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

// messageMeter follows the gRPC messages of a stream in one direction. Each message has a prefix, whose last four bytes
// are its length.
type messageMeter struct {
	prefix [messageHead]byte
	have   uint8  // bytes of prefix that have arrived
	size   uint32 // length of the message, in bytes
	left   uint32 // bytes of the message that have not arrived
	whole  bool   // whether a message has arrived and the next one has not begun
}

func (m *messageMeter) hasPrefix() bool { return int(m.have) == len(m.prefix) }

// feed follows a part of a stream's payload. It reports whether a message ended in it.
func (m *messageMeter) feed(p []byte) (ended bool) {
	for {
		if m.hasPrefix() {
			n := uint32(min(int64(m.left), int64(len(p)))) //nolint:gosec // left is a uint32
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
