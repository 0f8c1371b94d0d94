package rls

import (
	"context"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Any request gets a status per descriptor, or InvalidArgument.
func FuzzShouldRateLimit(f *testing.F) {
	for _, req := range []*pb.RateLimitRequest{
		{},
		request(descriptor("user=a"), descriptor("east=a"), descriptor("trial=b")),
		request(costing(0, descriptor("user=a")), negative(costing(1<<40, descriptor("user=a")))),
		request(multiplied(7, limited(3, typepb.RateLimitUnit_DAY, descriptor("user=a"))), limited(1, 99, descriptor("x=y"))),
		request(descriptor("free=1"), descriptor("both=1", "deeper=2"), descriptor("=")),
	} {
		data, err := proto.Marshal(req)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	s, _ := service(f, parityRules+"---"+metadataRules, func(o *options) { o.DynamicMetadata = true })
	f.Fuzz(func(t *testing.T, data []byte) {
		req := &pb.RateLimitRequest{}
		if proto.Unmarshal(data, req) != nil {
			return
		}
		res, err := sendWire(context.Background(), s, data)
		if err != nil {
			if code := status.Code(err); code != codes.InvalidArgument || status.Convert(err).Message() == "" {
				t.Errorf("got %v, want InvalidArgument with a message", err)
			}
			return
		}
		if len(res.GetStatuses()) != len(req.GetDescriptors()) {
			t.Errorf("%d statuses for %d descriptors", len(res.GetStatuses()), len(req.GetDescriptors()))
		}
		for i, st := range res.GetStatuses() {
			if c := st.GetCode(); c != pb.RateLimitResponse_OK && c != pb.RateLimitResponse_OVER_LIMIT {
				t.Errorf("status %d is %s", i, c)
			}
			if d := st.GetDurationUntilReset(); d != nil && (d.GetSeconds() < 0 || d.GetNanos() != 0) {
				t.Errorf("status %d: duration_until_reset %v is no whole second", i, d)
			}
		}
		if _, err := proto.Marshal(res); err != nil {
			t.Errorf("the response does not marshal: %v", err)
		}
	})
}
