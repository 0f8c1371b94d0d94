package main

import (
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

func TestOverallCode(t *testing.T) {
	statuses := []*pb.RateLimitResponse_DescriptorStatus{{Code: pb.RateLimitResponse_OVER_LIMIT}, {LimitRemaining: 7}}
	for want := range code(3) {
		if want == pb.RateLimitResponse_UNKNOWN {
			continue
		}
		whole, err := proto.Marshal(&pb.RateLimitResponse{OverallCode: want, Statuses: statuses})
		if err != nil {
			t.Fatal(err)
		}
		rest, err := proto.Marshal(&pb.RateLimitResponse{Statuses: statuses})
		if err != nil {
			t.Fatal(err)
		}
		behind := append(rest, byte(1<<3), byte(want)) //nolint:gocritic // protobuf allows fields in any order
		for _, data := range []mem.BufferSlice{
			{mem.SliceBuffer(whole)},
			{mem.SliceBuffer(behind)},
			{mem.SliceBuffer(whole[:1]), mem.SliceBuffer(whole[1:])},
		} {
			var got code
			if err := (rawCodec{}).Unmarshal(data, &got); err != nil || got != want {
				t.Errorf("%v: %v, %v; want %v", data, got, err, want)
			}
		}
	}
}
