package xds

import (
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
)

// maxMessages bounds the messages of an answer: descriptors, limits and parts of metadata. Loading takes some 1,200
// bytes for each, of which the answer itself may have two.
const maxMessages = 800_000

// resourceSize is what an empty resource counts for: it takes no bytes of rules, but memory.
const resourceSize = 64

// sizeOf is the size of an answer's resources.
func sizeOf(answer *discoveryv3.DiscoveryResponse) (size int) {
	for _, r := range answer.GetResources() {
		size += max(len(r.GetValue()), resourceSize)
	}
	return size
}

// hasTooMany reports whether an answer has more than maxMessages, without decoding it.
func hasTooMany(answer *discoveryv3.DiscoveryResponse) bool {
	n := 0
	for _, r := range answer.GetResources() {
		countMessages(r.GetValue(), configMessage, &n)
	}
	return n > maxMessages
}

// parts are the fields that hold messages, by their number.
type parts map[protowire.Number]*parts

// What a RateLimitConfig consists of.
var configMessage, descriptorMessage, policyMessage, structMessage, entryMessage, valueMessage, listMessage parts

func init() {
	configMessage = parts{3: &descriptorMessage}
	descriptorMessage = parts{3: &policyMessage, 4: &descriptorMessage, 8: &structMessage}
	policyMessage = parts{5: &parts{}}
	structMessage = parts{1: &entryMessage}
	entryMessage = parts{2: &valueMessage}
	valueMessage = parts{5: &structMessage, 6: &listMessage}
	listMessage = parts{1: &valueMessage}
}

// countMessages adds those in the text to n, until there are too many. What is broken is decoded later, and refused.
func countMessages(text []byte, in parts, n *int) {
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
		if part, ok := in[number]; ok && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(text)
			countMessages(value, *part, n)
		}
		text = text[size:]
	}
}
