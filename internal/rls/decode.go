package rls

import (
	"errors"
	"strings"
	"unicode/utf8"

	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/weir-ratelimit/weir/internal/descriptors"
)

var errMalformed = errors.New("proto: the bytes are no RateLimitRequest")

// part is some of a request's bytes, and the same as text. Keys and values are substrings of that text, so that all
// text of a request is one allocation.
type part struct {
	wire []byte
	text string
}

// string returns the part as text, with a ? for each run of bytes that are not UTF-8. Envoy puts header values into
// descriptors as they are. Protobuf refuses the whole request for one such byte, and by default Envoy then lets it
// pass: a client must not be able to evade all of its limits by such a header. Values that differ only there share a
// counter, and no value becomes longer than it came.
func (p part) string() string {
	if utf8.ValidString(p.text) {
		return p.text
	}
	return strings.ToValidUTF8(p.text, "?")
}

// fields reads a message field by field. It accepts and rejects what google.golang.org/protobuf does.
type fields struct {
	rest      part
	malformed bool

	tag   uint64 // of the field that next has read
	value uint64 // of a varint
	body  part   // of a field with a length
}

// Wire types, the lower three bits of a tag. A known field of another wire type is an unknown field.
const (
	isVarint = uint64(protowire.VarintType)
	isBytes  = uint64(protowire.BytesType)
)

// next reads a field. It returns false at the end of the message, and where the message is malformed.
func (f *fields) next() bool {
	if f.malformed || len(f.rest.wire) == 0 {
		return false
	}
	tag, n := protowire.ConsumeVarint(f.rest.wire)
	number := tag >> 3
	if n < 0 || number < uint64(protowire.MinValidNumber) || number > uint64(protowire.MaxValidNumber) {
		f.malformed = true
		return false
	}
	f.skip(n)
	f.tag = tag
	switch tag & 7 {
	case isVarint:
		f.value, n = protowire.ConsumeVarint(f.rest.wire)
	case isBytes:
		f.body.wire, n = protowire.ConsumeBytes(f.rest.wire)
	default:
		n = protowire.ConsumeFieldValue(protowire.Number(number), protowire.Type(tag&7), f.rest.wire)
	}
	if n < 0 {
		f.malformed = true
		return false
	}
	if tag&7 == isBytes {
		f.body.text = f.rest.text[n-len(f.body.wire) : n]
	}
	f.skip(n)
	return true
}

func (f *fields) skip(n int) {
	f.rest.wire, f.rest.text = f.rest.wire[n:], f.rest.text[n:]
}

// decode fills the call from a RateLimitRequest. As in protobuf, the last of several values of a field counts, and
// several messages of a field that is not repeated are merged.
func (c *call) decode(wire []byte) error {
	f := fields{rest: part{wire, string(wire)}}
	for f.next() {
		switch f.tag {
		case 1<<3 | isBytes:
			c.Domain = f.body.string()
		case 2<<3 | isBytes:
			f.malformed = !c.decodeDescriptor(f.body)
			if c.isLarge() {
				if err := c.enterLarge(); err != nil {
					return err
				}
			}
		case 3<<3 | isVarint:
			c.addend = uint32(f.value) //nolint:gosec // protobuf cuts too
		}
	}
	if f.malformed {
		return errMalformed
	}
	return nil
}

func (c *call) decodeDescriptor(p part) bool {
	var d wireDescriptor
	if c.AddDescriptor() == nil {
		return true // only counted
	}
	f := fields{rest: p}
	for f.next() {
		switch f.tag {
		case 1<<3 | isBytes:
			var e descriptors.Entry
			f.malformed = !decodeEntry(f.body, &e)
			c.AddEntry(e.Key, e.Value)
			c.entries++
		case 2<<3 | isBytes:
			f.malformed = !d.limit.decode(f.body)
		case 3<<3 | isBytes:
			f.malformed = !d.addend.decode(f.body)
		case 4<<3 | isVarint:
			d.isNegative = f.value != 0
		}
	}
	c.wire = append(c.wire, d)
	return !f.malformed
}

func decodeEntry(p part, e *descriptors.Entry) bool {
	f := fields{rest: p}
	for f.next() {
		switch f.tag {
		case 1<<3 | isBytes:
			e.Key = f.body.string()
		case 2<<3 | isBytes:
			e.Value = f.body.string()
		}
	}
	return !f.malformed
}

// override is a limit that a descriptor brings along.
type override struct {
	present    bool
	requests   uint32
	unit       typepb.RateLimitUnit
	multiplier wrapped[uint32]
}

func (o *override) decode(p part) bool {
	o.present = true
	f := fields{rest: p}
	for f.next() {
		switch f.tag {
		case 1<<3 | isVarint:
			o.requests = uint32(f.value) //nolint:gosec // protobuf cuts too
		case 2<<3 | isVarint:
			o.unit = typepb.RateLimitUnit(f.value) //nolint:gosec // protobuf cuts too
		case 3<<3 | isBytes:
			f.malformed = !o.multiplier.decode(f.body)
		}
	}
	return !f.malformed
}

// wrapped is a UInt64Value or UInt32Value: a number that may be absent.
type wrapped[N uint32 | uint64] struct {
	present bool
	value   N
}

func (w *wrapped[N]) decode(p part) bool {
	w.present = true
	f := fields{rest: p}
	for f.next() {
		if f.tag == 1<<3|isVarint {
			w.value = N(f.value)
		}
	}
	return !f.malformed
}
