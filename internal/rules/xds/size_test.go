package xds

import (
	"bytes"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/weir-ratelimit/weir/internal/test/partnertest"
)

// A response of few bytes that would decode to many is refused before.
func TestAnswersOfManySmallRules(t *testing.T) {
	f := &follower{Source: New(Options{Server: "gateway:18001", Log: slog.New(slog.DiscardHandler), MaxSize: 16 << 20})}
	receive := func(text []byte) *received {
		t.Helper()
		var r received
		c := codec{encoding.GetCodecV2("proto"), f.o.MaxSize}
		if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(text)}, &r); err != nil {
			t.Fatal(err)
		}
		return &r
	}
	rules := func(n int) []byte {
		d := &ratelimitv3.RateLimitDescriptor{Key: "k", RateLimit: &ratelimitv3.RateLimitPolicy{RequestsPerUnit: 1}}
		above := partnertest.Node("above", "")
		for range n {
			above.Descriptors = append(above.Descriptors, d)
		}
		resource, err := anypb.New(partnertest.Domain("d", above))
		if err != nil {
			t.Fatal(err)
		}
		text, err := proto.Marshal(&discoveryv3.DiscoveryResponse{TypeUrl: typeURL, Resources: []*anypb.Any{resource}})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	// The other four messages are the answer, its resource, the domain and the descriptor above.
	if r := receive(rules(maxMessages/2 - 2)); r.messages != maxMessages || len(r.Resources) != 1 {
		t.Errorf("%d messages are too many", r.messages)
	}
	header := protowire.AppendString(protowire.AppendTag(nil, 4, protowire.BytesType), typeURL)
	for name, c := range map[string]struct {
		text []byte
		why  string
	}{
		"rules":                   {rules(maxMessages / 2), "more than 800000 resources, descriptors"},
		"empty resources":         {append(header, bytes.Repeat([]byte{2<<3 | 2, 0}, 7<<20)...), "more than 800000 resources"},
		"too many of these, also": {append(header, bytes.Repeat([]byte{2<<3 | 2, 0}, 20<<20)...), "--max-rules-size"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r := receive(c.text)
		runtime.ReadMemStats(&after)
		if why := f.take(t.Context(), r); !strings.Contains(why, c.why) {
			t.Errorf("%s: refused because of %q", name, why)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 2*uint64(len(c.text))+16<<20 {
			t.Errorf("%s: an answer of %d bytes takes %d", name, len(c.text), took)
		}
	}
}
