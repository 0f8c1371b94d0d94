//go:build e2e

package e2e

import (
	"strings"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
)

const modes = `
domain: modes
descriptors:
  - {key: free, rate_limit: {unlimited: true}}
  - {key: everybody, rate_limit: {name: everybody, requests_per_unit: 1, unit: year}}
`

// ask asks for one descriptor of one entry for each key, and returns the answer as "OVER_LIMIT: OK OVER_LIMIT".
func ask(t *testing.T, conn *grpc.ClientConn, keys ...string) string {
	t.Helper()
	req := &pb.RateLimitRequest{Domain: "modes"}
	for _, key := range keys {
		entry := &common.RateLimitDescriptor_Entry{Key: key, Value: "x"}
		req.Descriptors = append(req.Descriptors,
			&common.RateLimitDescriptor{Entries: []*common.RateLimitDescriptor_Entry{entry}})
	}
	resp, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	answer := []string{resp.GetOverallCode().String() + ":"}
	for _, s := range resp.GetStatuses() {
		answer = append(answer, s.GetCode().String())
	}
	return strings.Join(answer, " ")
}

// question is a request of the domain shop with one descriptor, of keys and values in turn.
func question(pairs ...string) *pb.RateLimitRequest {
	d := &common.RateLimitDescriptor{}
	for i := 0; i < len(pairs); i += 2 {
		d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return &pb.RateLimitRequest{Domain: "shop", Descriptors: []*common.RateLimitDescriptor{d}}
}
