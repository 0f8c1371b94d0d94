package app

import (
	"context"
	"strings"
	"testing"
	"time"

	quotapb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// quotaOptions are those of a process that assigns quotas.
func quotaOptions(t *testing.T, rules string) Options {
	t.Helper()
	o := options(t, rules)
	o.QuotaOptions = QuotaOptions{Quota: true}
	return o
}

// quotaStream is a stream of an Envoy.
type quotaStream struct {
	grpc.BidiStreamingClient[quotapb.RateLimitQuotaUsageReports, quotapb.RateLimitQuotaResponse]

	t *testing.T
}

func (p *process) quotaStream(t *testing.T) *quotaStream {
	t.Helper()
	conn, err := grpc.NewClient(strings.Replace(p.app.GRPCAddr(), "127.0.0.1", "passthrough:///127.0.0.1", 1),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	t.Cleanup(func() {
		cancel()
		_ = conn.Close()
	})
	stream, err := quotapb.NewRateLimitQuotaServiceClient(conn).StreamRateLimitQuotas(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return &quotaStream{stream, t}
}

// report sends that so many requests of a bucket passed.
func (s *quotaStream) report(domain, key, value string, allowed uint64) {
	s.t.Helper()
	err := s.Send(&quotapb.RateLimitQuotaUsageReports{
		Domain: domain,
		BucketQuotaUsages: []*quotapb.RateLimitQuotaUsageReports_BucketQuotaUsage{{
			BucketId: &quotapb.BucketId{Bucket: map[string]string{key: value}}, NumRequestsAllowed: allowed,
		}},
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// next waits for the next assignment.
func (s *quotaStream) next() {
	s.t.Helper()
	if res, err := s.Recv(); err != nil || len(res.GetBucketAction()) == 0 {
		s.t.Fatalf("the response %v assigns nothing: %v", res, err)
	}
}

// What Envoys report is counted under the rule, and among the busiest keys. A stream may be silent for longer than a
// request may take to arrive. A stop ends it, and does not wait for it.
func TestQuotas(t *testing.T) {
	o := quotaOptions(t, "domain: shop\ndescriptors:\n- {key: plan, rate_limit: {unit: hour, requests_per_unit: 1000}}\n")
	o.Top.PerRule, o.Metrics.MaxRules, o.Clients.ReceiveTimeout = 10, 10, 200*time.Millisecond
	p := start(t, o)
	s := p.quotaStream(t)
	s.report("shop", "plan", "paid", 7)
	s.next()
	const series = `weir_quota_decisions_total{by="envoy",domain="shop",limit="",outcome="allowed",rule="plan"} 7`
	proctest.Eventually(t, "7 reported requests are counted", func() bool {
		_, metrics := p.http("GET", "/metrics")
		_, top := p.http("GET", "/top")
		return strings.Contains(metrics, series) && strings.Contains(top, `"hits": 7`)
	})
	if _, metrics := p.http("GET", "/metrics"); strings.Contains(metrics, "weir_decisions_total{") {
		t.Error("they count as decided here, too")
	}
	if _, rules := p.http("GET", "/rules"); !strings.Contains(strings.Join(strings.Fields(rules), ""),
		`"decisions":{"allowed":7}`) {
		t.Errorf("GET /rules: %s", rules)
	}
	time.Sleep(2 * o.Clients.ReceiveTimeout)
	s.report("shop", "plan", "free", 1)
	s.next()
	began := time.Now()
	p.wait()
	if took := time.Since(began); took > patience/2 {
		t.Errorf("the stop took %s", took)
	}
	if text := p.log.String(); !strings.Contains(text, "all_answered=true") || !strings.Contains(text, "quota=true") {
		t.Errorf("the stop cut the stream off, or the log does not say that there are quotas:\n%s", text)
	}
}

func TestWithoutQuotaThereIsNoService(t *testing.T) {
	p := start(t, options(t, "domain: shop\ndescriptors: [{key: none}]\n"))
	s := p.quotaStream(t)
	_ = s.Send(&quotapb.RateLimitQuotaUsageReports{Domain: "shop"})
	if _, err := s.Recv(); status.Code(err) != codes.Unimplemented {
		t.Errorf("without --quota: %v", err)
	}
}
