package conns

import "encoding/binary"

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
	began   int64 // when the frame began, by Guard.now
}

// inFrame reports whether a frame has begun and not ended.
func (c *cutter) inFrame() bool { return c.preface > 0 || c.have > 0 || c.skip > 0 }

// cut passes the frames in p to the follower. It returns false if the follower has stopped it.
func (c *cutter) cut(p []byte, now int64, to follower) bool {
	if c.preface > 0 {
		n := min(c.preface, len(p))
		c.preface, p = c.preface-n, p[n:]
	}
	for {
		if c.skip > 0 {
			n := min(c.skip, len(p))
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
	have   int    // bytes of prefix that have arrived
	left   uint64 // bytes of the message that are missing
	whole  bool   // a message has arrived, and no other has begun
}

// feed follows some of a stream's payload. It reports whether a message ended in it.
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
