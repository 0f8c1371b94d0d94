package rls

import (
	"testing"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
)

// What is cut off from a request is not kept by the scratch that the next request gets.
func TestScratchKeepsNothing(t *testing.T) {
	req := &pb.RateLimitRequest{Domain: "shop"}
	for range 5 {
		d := &commonpb.RateLimitDescriptor{}
		for range 4 {
			d.Entries = append(d.Entries, &commonpb.RateLimitDescriptor_Entry{Key: "api_key", Value: "secret"})
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	wire, err := proto.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	sc := &scratch{o: &Options{MaxDescriptors: 2, MaxEntries: 3}}
	if err := sc.decode(wire); err != nil {
		t.Fatal(err)
	}
	if sc.descriptors != 5 || len(sc.questions) != 2 {
		t.Fatalf("%d descriptors, %d kept", sc.descriptors, len(sc.questions))
	}
	sc.reset()
	for i, e := range sc.entries[:cap(sc.entries)] {
		if e.Key != "" || e.Value != "" {
			t.Errorf("entry %d of the request is still there: %+v", i, e)
		}
	}
	for i := range sc.questions[:cap(sc.questions)] {
		if q := &sc.questions[:cap(sc.questions)][i]; q.to != 0 || q.entries != 0 {
			t.Errorf("descriptor %d of the request is still there: %+v", i, q)
		}
	}
}
