package rls

import (
	"strings"
	"unicode/utf8"
	"unsafe"

	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/weir-ratelimit/weir/internal/descriptors"
)

var errMalformed = status.Error(codes.Internal, "proto: the bytes are not a RateLimitRequest")

// validText returns text with a ? in place of each run of bytes that are not UTF-8. Envoy copies header values into
// descriptors unchecked. Protobuf would reject the whole request for one invalid byte, and Envoy would by default admit
// the request, so a client could evade all of its limits with such a header. Values that differ only in invalid bytes
// share a counter. The result is never longer than text.
func validText(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	return strings.ToValidUTF8(text, "?")
}

// fields reads a message field by field. It accepts and rejects the same bytes as google.golang.org/protobuf. Its texts
// are substrings of the message, so that all text of a request is one allocation.
type fields struct {
	rest      string
	malformed bool

	tag   uint64 // tag of the field that next has read
	value uint64 // value, if it is a varint
	body  string // bytes, if it is a field with a length
}

// Wire types, the lower three bits of a tag. A known field number with another wire type counts as an unknown field.
const (
	isVarint = uint64(protowire.VarintType)
	isBytes  = uint64(protowire.BytesType)
)

// next reads a field. It returns false at the end of the message, or if the message is malformed.
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
// counts, and several messages for a field that is not repeated are merged. The error is errMalformed, an
// InvalidArgument that names the field of a cost or a limit that is not allowed, or the error
// of the context as a status.
func (c *call) decode(message mem.BufferSlice) error {
	defer message.Free()
	if message.Len() > maxSmall { // the copies below take several times the memory of the message
		if err := c.enterLarge(); err != nil {
			return err
		}
	}
	buffer := message.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buffer.Free()
	f := fields{rest: string(buffer.ReadOnlyData())}
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
			c.addend = uint32(f.value) //nolint:gosec // protobuf truncates too
		}
	}
	if f.malformed {
		return errMalformed
	}
	for i := range c.wire {
		var err error
		d := &c.Descriptors[i]
		if d.Cost, err = c.wire[i].cost(i, c.addend, d.EndsRequest()); err != nil {
			return err
		}
		if d.Own.Window, err = c.wire[i].limit.window(i); err != nil {
			return err
		}
		d.Own.Requests = c.wire[i].limit.requests
	}
	return nil
}

func (c *call) decodeDescriptor(message string) bool {
	var d wireDescriptor
	if c.AddDescriptor() == nil {
		return true // beyond the maximum, AddDescriptor only counts
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

// override is the limit that a request carries for a descriptor.
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
			o.requests = uint32(f.value) //nolint:gosec // protobuf truncates too
		case 2<<3 | isVarint:
			o.unit = typepb.RateLimitUnit(f.value) //nolint:gosec // protobuf truncates too
		case 3<<3 | isBytes:
			f.malformed = !o.multiplier.decode(f.body)
		}
	}
	return !f.malformed
}

// wrapped is a UInt64Value or UInt32Value, a number that may be absent.
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
