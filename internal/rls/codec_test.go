package rls

import (
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

// wire is the request on the wire, with two bytes that are not UTF-8 where its text has a §.
func wire(t *testing.T, req *pb.RateLimitRequest) mem.BufferSlice {
	t.Helper()
	data, err := proto.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	// Two bytes become two bytes, so that no length changes.
	data = []byte(strings.ReplaceAll(string(data), "§", "\xff\xfe"))
	half := len(data) / 2
	return mem.BufferSlice{mem.SliceBuffer(data[:half]), mem.SliceBuffer(data[half:])}
}

func TestTextThatIsNotUTF8(t *testing.T) {
	ask := func(domain, value string) *pb.RateLimitRequest {
		req := request(
			descriptor("remote_address=10.0.0.1"),
			costing(7, limited(3, typepb.RateLimitUnit_DAY, descriptor("user="+value, "k"+value+"=é"))),
			negative(descriptor("x=")),
		)
		req.Domain, req.HitsAddend = domain, 5
		return req
	}
	for _, tt := range []struct{ domain, value, wantDomain, wantValue string }{
		{"shop", "Zoë", "shop", "Zoë"},
		{"shop", "a§b§", "shop", "a?b?"},
		{"sh§p", "b", "sh?p", "b"},
	} {
		got := &pb.RateLimitRequest{}
		if err := Codec().Unmarshal(wire(t, ask(tt.domain, tt.value)), got); err != nil {
			t.Errorf("domain %q, value %q: %v", tt.domain, tt.value, err)
		}
		if diff := cmp.Diff(ask(tt.wantDomain, tt.wantValue), got, protocmp.Transform()); diff != "" {
			t.Errorf("domain %q, value %q: -want +got\n%s", tt.domain, tt.value, diff)
		}
	}
}

func TestMalformedRequest(t *testing.T) {
	entry := protowire.AppendTag(nil, 2, protowire.BytesType)
	for _, data := range []string{
		"\xff\xff\xff",
		"\x0a\x7fshop",                  // shorter than it says
		string(append(entry, 2, 10, 9)), // a descriptor whose entry is
	} {
		err := Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, &pb.RateLimitRequest{})
		if err == nil || !strings.Contains(err.Error(), "proto") {
			t.Errorf("%q: got %v, want protobuf's error", data, err)
		}
	}
	// Nothing but questions is repaired.
	res := &pb.RateLimitResponse_RateLimit{Name: "§"}
	data, err := proto.Marshal(res)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-1] = 0xff
	if err := Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, res); err == nil || !strings.Contains(err.Error(), "UTF-8") {
		t.Errorf("a response: got %v, want that it is not UTF-8", err)
	}
}
