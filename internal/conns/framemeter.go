package conns

import (
	"encoding/binary"
	"errors"
	"slices"
	"sync"
)

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

	flagEndStream = 1 // of DATA and HEADERS
	flagPadded    = 8 // of DATA
	flagAck       = 1 // of SETTINGS and PING
)

// The memory of a request besides its payload, in bytes.
const (
	streamCost = 8 << 10 // a goroutine, and gRPC's state of a stream
	bufferCost = 128     // the header of a buffer
)

// errResets closes the connection.
var errResets = errors.New("the client resets too many requests a second")

// frameMeter follows the frames that a client sends.
type frameMeter struct {
	mu sync.Mutex // of the reader, the sweep, and freeMemory

	preface int // bytes of the preface that are missing
	header  [headerLen]byte
	have    int    // bytes of header that have arrived
	skip    int    // bytes of the frame's payload that are missing
	ending  uint32 // the stream that ends with this frame; 0: none
	data    uint32 // the stream whose messages this frame has, of HTTP2.Streams; 0: none
	began   int64  // when the frame began, by Guard.now

	incomplete []incompleteRequest // by stream
	change     int64               // of their memory, not yet accounted
	isClosed   bool                // nothing is accounted any more
	completed  bool                // a request has arrived completely
	freePing   bool                // a request has begun since the last PING
	resets     tokenBucket         // that the client may still send
}

type incompleteRequest struct {
	stream  uint32
	isReset bool  // marked, until the server reads its reset
	since   int64 // when it, or its message, began, or it was marked, by Guard.now
	memory  int64 // bytes
	message messageMeter
}

// messageMeter follows the gRPC messages of a request, of HTTP2.Streams: each has a prefix of 5 bytes, the last four of
// which are its length.
type messageMeter struct {
	prefix [5]byte
	have   int    // bytes of prefix that have arrived
	left   uint64 // bytes of the message that are missing
	whole  bool   // a message has arrived, and no other has begun
}

// feed follows some of a request's payload. It reports whether a message ended in it.
func (m *messageMeter) feed(p []byte) (ended bool) {
	for {
		if m.have == len(m.prefix) {
			n := min(m.left, uint64(len(p)))
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
		m.have, m.whole, p = m.have+n, false, p[n:]
		if m.have == len(m.prefix) {
			m.left = uint64(binary.BigEndian.Uint32(m.prefix[1:]))
		}
	}
}

// tokenBucket holds at most a second's tokens.
type tokenBucket struct {
	tokens float64
	at     int64 // by Guard.now
}

// take takes a token, of perSecond a second. It returns false if there is none.
func (b *tokenBucket) take(now int64, perSecond float64) bool {
	b.tokens = min(perSecond, b.tokens+perSecond*float64(now-b.at)/1000)
	b.at = now
	b.tokens--
	return b.tokens >= 0
}

// inFrame reports whether a frame has begun and not ended. m is locked.
func (m *frameMeter) inFrame() bool { return m.preface > 0 || m.have > 0 || m.skip > 0 }

// feed follows the bytes that the server has read. An error closes the connection.
func (f *http2Conn) feed(p []byte) error {
	now := f.c.g.now()
	f.mu.Lock()
	err := f.follow(p, now)
	completed := f.completed
	f.completed = false
	tooMuch := f.account()
	f.mu.Unlock()
	if completed {
		f.c.used.Store(now)
		f.c.busy.Store(true)
	}
	if tooMuch {
		f.c.g.freeMemory()
	}
	if err != nil {
		f.c.g.refuse(Resets, f.c.host)
		f.c.g.punish(f.c.host)
	}
	return err
}

// follow goes through the bytes. f is locked.
func (f *http2Conn) follow(p []byte, now int64) error {
	if f.preface > 0 {
		n := min(f.preface, len(p))
		f.preface, p = f.preface-n, p[n:]
	}
	for {
		if f.skip > 0 {
			n := min(f.skip, len(p))
			if f.data != 0 {
				f.messages(p[:n], now)
			}
			f.skip, p = f.skip-n, p[n:]
			if f.skip > 0 {
				return nil
			}
			f.end()
		}
		if len(p) == 0 {
			return nil
		}
		if f.have == 0 {
			f.began = now
		}
		n := copy(f.header[f.have:], p)
		f.have, p = f.have+n, p[n:]
		if f.have < headerLen {
			return nil
		}
		f.have = 0
		if !f.frame(now) {
			return errResets
		}
		if f.skip == 0 {
			f.end()
		}
	}
}

// frame counts the frame whose header has arrived. It returns false if the client has reset too many requests. Frames
// that make the server work for nothing count as resets; a PING for each request does not, since grpc-go measures by it
// how fast answers come. f is locked.
func (f *http2Conn) frame(now int64) bool {
	length := int(binary.BigEndian.Uint32(f.header[:4]) >> 8)
	kind, flags := f.header[3], f.header[4]
	stream := binary.BigEndian.Uint32(f.header[5:]) &^ (1 << 31)
	f.skip, f.ending, f.data = length, 0, 0
	ends, isAck := flags&flagEndStream != 0, flags&flagAck != 0
	isReset := false
	switch kind {
	case frameHeaders:
		f.freePing = true
		if ends {
			f.completed = true
			return true
		}
		f.incomplete = append(f.incomplete, incompleteRequest{stream: stream, since: now})
		f.grow(len(f.incomplete)-1, streamCost+2*int64(length))
	case frameContinuation:
		f.grow(f.find(stream), 2*int64(length))
	case frameData:
		if ends {
			f.ending = stream
		} else if f.h.Streams && flags&flagPadded == 0 {
			f.data = stream
		}
		f.grow(f.find(stream), bufferSize(length))
		isReset = length == 0 && !ends
	case frameReset:
		f.drop(f.find(stream))
		isReset = true
	case frameWindowUpdate:
	case framePing:
		isReset = !isAck && !f.freePing
		f.freePing = f.freePing && isAck
	case frameSettings:
		isReset = !isAck
	default: // no gRPC server needs it
		isReset = true
	}
	return !isReset || f.resets.take(now, float64(f.h.MaxResets))
}

// end is called when a frame is complete. f is locked.
func (f *http2Conn) end() {
	if f.ending != 0 {
		if i := f.find(f.ending); i >= 0 {
			f.drop(i)
			f.completed = true
		}
		f.ending = 0
	}
}

// messages follows the messages of the request that the frame is of. f is locked.
func (f *http2Conn) messages(p []byte, now int64) {
	i := f.find(f.data)
	if i < 0 || f.incomplete[i].isReset {
		return
	}
	r := &f.incomplete[i]
	wasWhole := r.message.whole
	ended := r.message.feed(p)
	if ended { // gRPC frees a message that the server has read
		f.change -= r.memory - streamCost
		r.memory, f.completed = streamCost, true
	}
	if ended || wasWhole {
		r.since = now
	}
}

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

// find returns the index of a stream's request, or -1. Streams begin in order; usually it is the last one. f is locked.
func (f *http2Conn) find(stream uint32) int {
	last := len(f.incomplete) - 1
	if last < 0 || f.incomplete[last].stream == stream {
		return last
	}
	i, ok := slices.BinarySearchFunc(f.incomplete, stream, func(r incompleteRequest, stream uint32) int {
		return int(r.stream) - int(stream)
	})
	if !ok {
		return -1
	}
	return i
}

// grow adds memory to the request at i, unless i is -1. f is locked.
func (f *http2Conn) grow(i int, by int64) {
	if i >= 0 {
		f.incomplete[i].memory += by
		f.change += by
	}
}

// drop removes the request at i, unless i is -1. f is locked.
func (f *http2Conn) drop(i int) {
	if i < 0 {
		return
	}
	f.change -= f.incomplete[i].memory
	if f.incomplete[i].isReset {
		f.resetting.Add(-1)
	}
	f.incomplete = slices.Delete(f.incomplete, i, i+1)
}
