package conns

import (
	"encoding/binary"
	"errors"
	"slices"
	"sync"
)

// What RFC 9113 says of frames.
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
	flagAck       = 1 // of SETTINGS and PING
)

// What a request takes beside its bytes, in bytes: a goroutine and gRPC's state of a stream; a buffer's header.
const (
	streamCost = 8 << 10
	bufferCost = 128
)

// errResets ends a connection.
var errResets = errors.New("the client resets too many requests a second")

// meter follows the frames that a client sends.
type meter struct {
	mu sync.Mutex // the reader, the sweep, and who needs memory

	preface int // bytes of the preface that are still to come
	header  [headerLen]byte
	have    int    // bytes of header that have come
	skip    int    // bytes of the frame's payload that are still to come
	ending  uint32 // the stream that ends with this frame; 0 for none
	began   int64  // when the frame began, as Guard.now

	half   []half // requests that have not arrived whole, by stream
	change int64  // of the memory that they take, not yet accounted
	closed bool   // nothing is accounted any more
	whole  bool   // a request has arrived whole
	bucket bucket
}

// half is a request that has not arrived whole.
type half struct {
	stream uint32
	doomed bool  // it is to be reset
	since  int64 // as Guard.now
	memory int64 // bytes
}

// bucket is how many resets a client may send.
type bucket struct {
	tokens float64
	at     int64 // as Guard.now
}

// take is false if there are too many, by now.
func (b *bucket) take(now int64, most float64) bool {
	b.tokens = min(most, b.tokens+most*float64(now-b.at)/1000)
	b.at = now
	b.tokens--
	return b.tokens >= 0
}

// inFrame says whether the last byte that was read is within a frame. m is locked.
func (m *meter) inFrame() bool { return m.preface > 0 || m.have > 0 || m.skip > 0 }

// feed follows what was read. An error ends the connection.
func (f *framed) feed(p []byte) error {
	now := f.c.g.now()
	f.mu.Lock()
	err := f.follow(p, now)
	whole := f.whole
	f.whole = false
	tooMuch := f.account()
	f.mu.Unlock()
	if whole {
		f.c.used.Store(now)
		f.c.busy.Store(true)
	}
	if tooMuch {
		f.c.g.relieve()
	}
	if err != nil {
		f.c.g.refuse(Resets, f.c.host)
		f.c.g.punish(f.c.host)
	}
	return err
}

// follow goes through bytes. f is locked.
func (f *framed) follow(p []byte, now int64) error {
	if f.preface > 0 {
		n := min(f.preface, len(p))
		f.preface, p = f.preface-n, p[n:]
	}
	for {
		if f.skip > 0 {
			n := min(f.skip, len(p))
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

// frame counts the frame whose header has come. It is false if the client has reset too much. f is locked.
func (f *framed) frame(now int64) bool {
	length := int(binary.BigEndian.Uint32(f.header[:4]) >> 8)
	kind, flags := f.header[3], f.header[4]
	stream := binary.BigEndian.Uint32(f.header[5:]) &^ (1 << 31)
	f.skip, f.ending = length, 0
	ends := flags&flagEndStream != 0
	switch kind {
	case frameHeaders:
		if ends {
			f.whole = true
			return true
		}
		f.half = append(f.half, half{stream: stream, since: now})
		f.grow(len(f.half)-1, streamCost+2*int64(length))
		return true
	case frameContinuation:
		f.grow(f.find(stream), 2*int64(length))
		return true
	case frameData:
		if ends {
			f.ending = stream
		}
		f.grow(f.find(stream), bufferSize(length))
		return length > 0 || ends || f.bucket.take(now, float64(f.h.MaxResets))
	case frameReset:
		f.drop(f.find(stream))
		return f.bucket.take(now, float64(f.h.MaxResets))
	case frameWindowUpdate:
		return true
	case frameSettings, framePing:
		return flags&flagAck != 0 || f.bucket.take(now, float64(f.h.MaxResets))
	default: // of no use to a gRPC server
		return f.bucket.take(now, float64(f.h.MaxResets))
	}
}

// end is called when a frame has come whole. f is locked.
func (f *framed) end() {
	if f.ending != 0 {
		if i := f.find(f.ending); i >= 0 {
			f.drop(i)
			f.whole = true
		}
		f.ending = 0
	}
}

// bufferSize is the memory that gRPC takes for the payload of a DATA frame.
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

// find is the index of a stream's request, or -1. Streams begin in order; nearly always it is the last one. f is locked.
func (f *framed) find(stream uint32) int {
	last := len(f.half) - 1
	if last < 0 || f.half[last].stream == stream {
		return last
	}
	i, ok := slices.BinarySearchFunc(f.half, stream, func(h half, stream uint32) int {
		return int(h.stream) - int(stream)
	})
	if !ok {
		return -1
	}
	return i
}

// grow accounts for memory of the request at i, if there is one. f is locked.
func (f *framed) grow(i int, by int64) {
	if i >= 0 {
		f.half[i].memory += by
		f.change += by
	}
}

// drop forgets the request at i, if there is one. f is locked.
func (f *framed) drop(i int) {
	if i < 0 {
		return
	}
	f.change -= f.half[i].memory
	if f.half[i].doomed {
		f.doomed.Add(-1)
	}
	f.half = slices.Delete(f.half, i, i+1)
}
