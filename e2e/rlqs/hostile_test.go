//go:build e2e

package rlqs

import (
	"net/http"
	"sync"
	"testing"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// TestClientWithAllStreams has a client take all streams, and each one again that it loses. An Envoy that comes then
// gets its assignment.
func TestClientWithAllStreams(t *testing.T) {
	t.Parallel()
	const most = 20
	weir := startWeir(t, ruleFile(t, weirRules), "--quota-max-streams", "20")
	conn, err := grpc.NewClient(weir.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	defer all.Wait()
	defer conn.Close() //nolint:errcheck // ends the streams
	for range 2 * most {
		all.Go(func() {
			for t.Context().Err() == nil {
				s, err := rlqsv3.NewRateLimitQuotaServiceClient(conn).StreamRateLimitQuotas(t.Context())
				if err != nil {
					return // the connection is closed
				}
				_ = s.Send(&rlqsv3.RateLimitQuotaUsageReports{Domain: "hostile"}) // Recv has its error
				for err == nil {
					_, err = s.Recv()
				}
			}
		})
	}
	await(t, "the client has all streams", func() bool {
		return weir.Metric(`weir_quota_refused_total{reason="streams"}`) >= most
	})
	c := newClient(t, frontOf(t, "a", weir.GRPC), "front")
	await(t, "the Envoy has an assignment", func() bool {
		return c.get(t, quotaOf("token_bucket")...).Status == http.StatusOK
	})
}
