package main

import (
	"errors"
	"fmt"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// rawCodec sends a []byte unchanged and decodes only a response's overall code, into a *code, because the load
// generator shares the CPUs with the targets.
type rawCodec struct{}

// code is the decoded part of a response.
type code = pb.RateLimitResponse_Code

var _ encoding.CodecV2 = rawCodec{}

// Name returns the usual content type.
func (rawCodec) Name() string { return "proto" }

// Marshal implements encoding.CodecV2. The bytes must not change later.
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.([]byte)
	if !ok {
		return nil, fmt.Errorf("encode a %T: only []byte", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

// Unmarshal implements encoding.CodecV2.
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	to, ok := v.(*code)
	if !ok {
		return fmt.Errorf("decode into a %T: only *code", v)
	}
	// Protocol Buffers encode fields in order: the overall code is field 1, a varint of one byte.
	if b := data.Materialize(); len(b) >= 2 && b[0] == 1<<3 {
		*to = code(b[1])
		return nil
	}
	return errors.New("a response without an overall code")
}
