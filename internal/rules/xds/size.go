package xds

import (
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxMessages bounds the messages of an answer: descriptors, limits and parts of metadata. Loading takes some 1,200
// bytes for each, of which the answer itself may have two.
const maxMessages = 800_000

// received is an answer, without its resources if it is too large to be decoded: resources of no bytes take forty times
// as much memory then.
type received struct {
	*discoveryv3.DiscoveryResponse

	size     int64 // in bytes
	messages int   // up to more than maxMessages
}

// codec decodes answers of up to maxSize bytes and maxMessages.
type codec struct {
	encoding.CodecV2

	maxSize int64
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	r, ok := v.(*received)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	text := data.Materialize()
	r.DiscoveryResponse, r.size = &discoveryv3.DiscoveryResponse{}, int64(len(text))
	if r.size <= c.maxSize {
		countMessages(text, response, &r.messages)
	}
	if r.size > c.maxSize || r.messages > maxMessages {
		text = withoutResources(text)
	}
	return proto.Unmarshal(text, r.DiscoveryResponse)
}

func withoutResources(text []byte) (rest []byte) {
	const resources = 2
	for len(text) > 0 {
		number, _, n := protowire.ConsumeField(text)
		if n < 0 {
			return append(rest, text...) // it cannot be decoded
		}
		if number != resources {
			rest = append(rest, text[:n]...)
		}
		text = text[n:]
	}
	return rest
}

var (
	response = (&discoveryv3.DiscoveryResponse{}).ProtoReflect().Descriptor()
	config   = (&ratelimitv3.RateLimitConfig{}).ProtoReflect().Descriptor()
)

// countMessages adds those in the text to n, until there are too many. What is broken is decoded later, and refused.
func countMessages(text []byte, in protoreflect.MessageDescriptor, n *int) {
	*n++
	for len(text) > 0 && *n <= maxMessages {
		number, kind, size := protowire.ConsumeTag(text)
		if size < 0 {
			return
		}
		text = text[size:]
		if size = protowire.ConsumeFieldValue(number, kind, text); size < 0 {
			return
		}
		if field := in.Fields().ByNumber(number); field != nil && kind == protowire.BytesType {
			part := field.Message()
			if field.FullName() == "google.protobuf.Any.value" {
				part = config
			}
			if part != nil {
				value, _ := protowire.ConsumeBytes(text)
				countMessages(value, part, n)
			}
		}
		text = text[size:]
	}
}
