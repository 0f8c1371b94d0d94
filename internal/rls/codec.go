package rls

import (
	"bytes"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
)

// Codec is gRPC's codec for protobuf, except that it also reads requests with text that is not UTF-8. Envoy puts
// header values into descriptors as they are, and protobuf for Go refuses the whole request for one such byte; by
// default Envoy lets a request pass when its question is refused. A client must not be able to evade all of its
// limits by such a header.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2(proto.Name)} }

type codec struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	err := c.CodecV2.Unmarshal(data, v)
	req, ok := v.(*pb.RateLimitRequest)
	if err == nil || !ok {
		return err
	}
	repaired, ok := requestText.repair(nil, data.Materialize())
	if !ok || protobuf.Unmarshal(repaired, req) != nil {
		return err
	}
	return nil
}

// text says which fields of a message are text (nil), or messages that have such fields.
type text map[protowire.Number]text

// requestText are the domain, and the keys and values of the descriptors' entries.
var requestText = text{1: nil, 2: {1: {1: nil, 2: nil}}}

// repair appends the message with a ? for each run of bytes that are not UTF-8: values that differ only there
// share a counter, and no value becomes longer than what is admitted. It fails if the message is malformed.
func (t text) repair(dst, message []byte) (_ []byte, ok bool) {
	for len(message) > 0 {
		number, kind, size := protowire.ConsumeField(message)
		if size < 0 {
			return nil, false
		}
		fields, known := t[number]
		if !known || kind != protowire.BytesType {
			dst = append(dst, message[:size]...)
			message = message[size:]
			continue
		}
		_, _, tag := protowire.ConsumeTag(message)
		value, _ := protowire.ConsumeBytes(message[tag:])
		if fields == nil {
			value = bytes.ToValidUTF8(value, []byte("?"))
		} else if value, ok = fields.repair(nil, value); !ok {
			return nil, false
		}
		dst = protowire.AppendBytes(protowire.AppendTag(dst, number, kind), value)
		message = message[size:]
	}
	return dst, true
}
