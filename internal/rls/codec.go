package rls

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// Codec is gRPC's codec for protobuf, except that it reads the requests and writes the replies of ShouldRateLimit
// itself, without an object for each of their messages: these cost more than deciding.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2(proto.Name)} }

type codec struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	to, ok := v.(*call)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buffer.Free()
	return to.decode(buffer.ReadOnlyData())
}

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	r, ok := v.(*reply)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	return r.buffers[:], nil
}

// reply is an encoded response and what gRPC wants around it, in one allocation. It is never used again, so no request
// can read what another one has written.
type reply struct {
	buffers [1]mem.Buffer
	buffer  mem.SliceBuffer
	short   [72]byte // most answers to one descriptor
}

// newReply copies the response.
func newReply(response []byte) *reply {
	r := new(reply)
	r.buffer = append(r.short[:0], response...)
	r.buffers[0] = &r.buffer
	return r
}
