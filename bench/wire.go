package main

import (
	"errors"
	"fmt"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// rawCodec sends a []byte as it is and reads of a response only its overall code, into a *code: the load generator
// shares the CPUs with what it measures, and should leave them alone.
type rawCodec struct{}

// code receives a response.
type code = pb.RateLimitResponse_Code

var _ encoding.CodecV2 = rawCodec{}

// Name makes the content type the usual one.
func (rawCodec) Name() string { return "proto" }

// Marshal implements encoding.CodecV2. The bytes must not change any more.
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
	if len(data) == 1 { // as good as always
		return overallCode(data[0].ReadOnlyData(), to)
	}
	return overallCode(data.Materialize(), to)
}

// overallCode reads field 1 of a RateLimitResponse.
func overallCode(b []byte, to *code) error {
	*to = pb.RateLimitResponse_UNKNOWN
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if number == 1 && kind == protowire.VarintType {
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return protowire.ParseError(n)
			}
			*to = code(v) //nolint:gosec // an enum
			return nil
		}
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
	}
	return errors.New("a response without an overall code")
}
