package rls

import (
	"strings"
	"unicode/utf8"
	"unsafe"

	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/weir-ratelimit/weir/internal/descriptors"
)

var errMalformed = status.Error(codes.Internal, "proto: the bytes are no RateLimitRequest")

// validText returns text with a ? for each run of bytes that are not UTF-8. Envoy puts header values into descriptors
// as they are. Protobuf refuses the whole request for one such byte, and by default Envoy then lets it pass: a client
// must not be able to evade all of its limits by such a header. Values that differ only there share a counter, and no
// value becomes longer than it came.
func validText(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	return strings.ToValidUTF8(text, "?")
}

// fields reads a message field by field. It accepts and rejects what google.golang.org/protobuf does. Its texts are
// substrings of the message, so that all text of a request is one allocation.
type fields struct {
	rest      string
	malformed bool

	tag   uint64 // of the field that next has read
	value uint64 // of a varint
	body  string // of a field with a length
}

// Wire types, the lower three bits of a tag. A known field of another wire type is an unknown field.
const (
	isVarint = uint64(protowire.VarintType)
	isBytes  = uint64(protowire.BytesType)
)

// next reads a field. It returns false at the end of the message, and where the message is malformed.
func (f *fields) next() bool {
	if f.malformed || f.rest == "" {
		return false
	}
	wire := unsafe.Slice(unsafe.StringData(f.rest), len(f.rest)) //nolint:gosec // protowire only reads
	tag, size := protowire.ConsumeVarint(wire)
	number := tag >> 3
	if size < 0 || number < uint64(protowire.MinValidNumber) || number > uint64(protowire.MaxValidNumber) {
		f.malformed = true
		return false
	}
	f.tag = tag
	var n, body int
	switch tag & 7 {
	case isVarint:
		f.value, n = protowire.ConsumeVarint(wire[size:])
	case isBytes:
		var text []byte
		text, n = protowire.ConsumeBytes(wire[size:])
		body = len(text)
	default:
		n = protowire.ConsumeFieldValue(protowire.Number(number), protowire.Type(tag&7), wire[size:])
	}
	if n < 0 {
		f.malformed = true
		return false
	}
	size += n
	f.body, f.rest = f.rest[size-body:size], f.rest[size:]
	return true
}

// decode fills the call from the bytes of a RateLimitRequest. As in protobuf, the last of several values of a field
// counts, and several messages of a field that is not repeated are merged.
func (c *call) decode(wire string) error {
	f := fields{rest: wire}
	for f.next() {
		switch f.tag {
		case 1<<3 | isBytes:
			c.Domain = validText(f.body)
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

func (c *call) decodeDescriptor(message string) bool {
	var d wireDescriptor
	if c.AddDescriptor() == nil {
		return true // only counted
	}
	f := fields{rest: message}
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

func decodeEntry(message string, e *descriptors.Entry) bool {
	f := fields{rest: message}
	for f.next() {
		switch f.tag {
		case 1<<3 | isBytes:
			e.Key = validText(f.body)
		case 2<<3 | isBytes:
			e.Value = validText(f.body)
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

func (o *override) decode(message string) bool {
	o.present = true
	f := fields{rest: message}
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

func (w *wrapped[N]) decode(message string) bool {
	w.present = true
	f := fields{rest: message}
	for f.next() {
		if f.tag == 1<<3|isVarint {
			w.value = N(f.value)
		}
	}
	return !f.malformed
}
