//go:build e2e && contract

package rlqs

import (
	"net"
	"testing"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// server is an RLQS server whose streams the test serves.
type server struct {
	rlqsv3.UnimplementedRateLimitQuotaServiceServer

	streams chan *stream
	reports chan report
}

type stream struct {
	grpc.BidiStreamingServer[rlqsv3.RateLimitQuotaUsageReports, rlqsv3.RateLimitQuotaResponse]

	end chan struct{}
}

// report is one message: usages by the bucket's header.
type report struct {
	at     time.Time
	usages map[string]*rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage
}

// StreamRateLimitQuotas implements the service.
func (s *server) StreamRateLimitQuotas(
	g grpc.BidiStreamingServer[rlqsv3.RateLimitQuotaUsageReports, rlqsv3.RateLimitQuotaResponse],
) error {
	st := &stream{g, make(chan struct{})}
	s.streams <- st
	go func() {
		for {
			m, err := g.Recv()
			if err != nil {
				return
			}
			r := report{time.Now(), map[string]*rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage{}}
			for _, u := range m.GetBucketQuotaUsages() {
				r.usages[u.GetBucketId().GetBucket()["bucket"]] = u
			}
			s.reports <- r
		}
	}()
	select {
	case <-st.end:
	case <-g.Context().Done():
	}
	return nil
}

// assign sends an assignment, or without a TTL abandons the bucket. It waits until Envoy has it for certain.
func (s *stream) assign(t *testing.T, bucket string, is *typev3.RateLimitStrategy, ttl time.Duration) {
	t.Helper()
	a := &rlqsv3.RateLimitQuotaResponse_BucketAction{BucketId: &rlqsv3.BucketId{Bucket: map[string]string{"bucket": bucket}}}
	a.BucketAction = &rlqsv3.RateLimitQuotaResponse_BucketAction_AbandonAction_{
		AbandonAction: &rlqsv3.RateLimitQuotaResponse_BucketAction_AbandonAction{},
	}
	if ttl > 0 {
		a.BucketAction = &rlqsv3.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction_{
			QuotaAssignmentAction: &rlqsv3.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction{
				AssignmentTimeToLive: durationpb.New(ttl), RateLimitStrategy: is,
			},
		}
	}
	if err := s.Send(&rlqsv3.RateLimitQuotaResponse{BucketAction: []*rlqsv3.RateLimitQuotaResponse_BucketAction{a}}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond)
}

// bucketOf is a token bucket that gets tokens in so many seconds.
func bucketOf(size, perFill uint32, seconds int) *typev3.RateLimitStrategy {
	return &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_TokenBucket{TokenBucket: &typev3.TokenBucket{
		MaxTokens: size, TokensPerFill: wrapperspb.UInt32(perFill),
		FillInterval: durationpb.New(time.Duration(seconds) * time.Second),
	}}}
}

// TestContract shows what Weir rests on of Envoy's filter rate_limit_quota (docs/adr/0077). It is for a quiet machine,
// when the pinned Envoy moves: go test -tags e2e,contract ./e2e/rlqs -run TestContract.
func TestContract(t *testing.T) {
	s := &server{streams: make(chan *stream, 10), reports: make(chan report, 1000)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	rlqsv3.RegisterRateLimitQuotaServiceServer(g, s)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = g.Serve(l)
	}()
	defer func() {
		g.Stop()
		<-served
	}()
	envoy := proctest.StartEnvoyWith(t, bootstrap([]string{quotaListener("front", "shop", "rlqs")},
		[]string{cluster("rlqs", grpcOptions, l.Addr().String())}), proctest.EnvoyOptions{Workers: 2})
	c := newClient(t, envoy, "front")
	const hour = 3600
	want := func(fact string, n, most int) {
		t.Helper()
		got := 0
		for range n {
			if c.get(t, "deny", "b") {
				got++
			}
		}
		if got != most {
			t.Errorf("%d of %d admitted, want %d: %s", got, n, most, fact)
		}
	}
	next := func() report {
		select {
		case r := <-s.reports:
			return r
		case <-time.After(patience):
			t.Fatal("no report")
			return report{}
		}
	}

	want("denied until the first assignment", 1, 0)
	st := <-s.streams
	if u := next().usages["b"]; u.GetNumRequestsDenied() != 1 || u.GetTimeElapsed().AsDuration() != 0 {
		t.Errorf("the first report is %v, want it at once", u)
	}
	st.assign(t, "b", bucketOf(10, 1, hour), time.Hour)
	want("a bucket begins full", 4, 4)
	st.assign(t, "b", bucketOf(10, 1, hour), time.Hour)
	st.assign(t, "b", bucketOf(20, 1, hour), time.Hour)
	want("an equal assignment keeps the tokens, another size the share of them", 20, 12)
	st.assign(t, "b", bucketOf(20, 1, 1), time.Hour)
	time.Sleep(2 * time.Second)
	want("another fill_interval alone is not seen", 5, 0)
	st.assign(t, "b", &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_BlanketRule_{
		BlanketRule: typev3.RateLimitStrategy_DENY_ALL,
	}}, time.Hour)
	want("DENY_ALL", 3, 0)
	st.assign(t, "b", bucketOf(5, 600, 60), time.Hour)
	want("a bucket after a blanket rule is full", 5, 5)
	time.Sleep(250 * time.Millisecond)
	want("600 a minute are one each 100 ms", 2, 2)

	first, second := next(), next() // ticks
	for second.at.Sub(first.at) > 7*time.Second || second.at.Sub(first.at) < 3*time.Second {
		first, second = second, next()
	}
	if u := second.usages["b"]; u == nil || u.GetTimeElapsed().GetNanos() != 0 {
		t.Errorf("the report after 5 s is %v, want whole seconds", u)
	}
	close(st.end)
	time.Sleep(200 * time.Millisecond)
	want("an assignment outlives its stream", 1, 1)
	st = <-s.streams
	if u := next().usages["b"]; u.GetNumRequestsAllowed() != 1 {
		t.Errorf("the first report of the next stream is %v, want what came meanwhile", u)
	}
	st.assign(t, "b", bucketOf(7, 1, hour), 2*time.Second)
	time.Sleep(2500 * time.Millisecond)
	want("an assignment ends", 3, 0)
	st.assign(t, "b", bucketOf(7, 1, hour), time.Hour)
	want("a bucket after an expired one is full", 9, 7)
	for len(s.reports) > 0 {
		<-s.reports
	}
	st.assign(t, "b", nil, 0)
	want("an abandoned bucket is gone", 1, 0)
	for r := next(); r.usages["b"].GetNumRequestsDenied() != 1; r = next() {
		if r.usages["b"] != nil {
			t.Errorf("%v, want a report of its own after abandon", r.usages["b"])
		}
	}
}
