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

// maxMessages bounds the messages of a response: descriptors, limits and parts of metadata. Loading takes about 1,200
// bytes of memory per message, even if the message has only two bytes in the response.
const maxMessages = 800_000

// received is a response, without resources if it is too large, because empty resources grow forty times when decoded.
type received struct {
	*discoveryv3.DiscoveryResponse

	size     int64 // in bytes
	messages int   // counted up to maxMessages + 1
}

// codec decodes responses, with their resources up to maxSize bytes and maxMessages.
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
			return append(rest, text...) // proto.Unmarshal returns an error for it
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

// countMessages adds the messages in text to n, until n exceeds maxMessages. Decoding reports malformed text later.
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
