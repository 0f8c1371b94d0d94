package app

import (
	"context"
	"strings"
	"testing"
	"time"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// meaningRules has a descriptor twice, which only a lenient process loads.
const meaningRules = `
domain: shop
descriptors:
  - {key: wide, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: narrow, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: narrow, rate_limit: {unit: year, requests_per_unit: 50}}
`

// The switches reach what they switch, with a Redis that counts and with one that hangs.
func TestSwitchesOfMeaning(t *testing.T) {
	server := redistest.Start(t)
	o := options(t, meaningRules)
	o.Store, o.StoreTimeout, o.OnStoreFailure, o.LenientRules = server.URL(), 0, "error", true
	o.ChargeEach, o.AllowLookAtLimit, o.RetryAfter, o.KnownDenials = true, true, false, true
	if err := o.Check(); err != nil {
		t.Fatal(err)
	}
	p := start(t, o)
	ask := func(deadline time.Duration, costs ...uint64) (*pb.RateLimitResponse, error) {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		req := &pb.RateLimitRequest{Domain: "shop"}
		for i, key := range []string{"wide", "narrow"}[:len(costs)] {
			req.Descriptors = append(req.Descriptors, &commonpb.RateLimitDescriptor{
				Entries:    []*commonpb.RateLimitDescriptor_Entry{{Key: key, Value: "a"}},
				HitsAddend: wrapperspb.UInt64(costs[i]),
			})
		}
		return p.client.ShouldRateLimit(ctx, req)
	}
	redistest.Await(t, func() error { _, err := ask(patience, 1, 1); return err })
	for i, costs := range [][]uint64{{1, 0}, {1, 1}, {1, 1}, {1, 0}} {
		res, err := ask(patience, costs...)
		if err != nil {
			t.Fatal(err)
		}
		want := pb.RateLimitResponse_OVER_LIMIT
		if i == 0 { // a look at exactly the limit
			want = pb.RateLimitResponse_OK
		}
		if res.GetOverallCode() != want || res.GetStatuses()[0].GetLimitRemaining() != uint32(98-i) {
			t.Errorf("request %d: %v, want %s with %d left of wide", i, res, want, 98-i)
		}
		if len(res.GetResponseHeadersToAdd()) != 0 {
			t.Errorf("request %d has headers: %v", i, res.GetResponseHeadersToAdd())
		}
	}
	if _, body := p.http("GET", "/rules"); !strings.Contains(body, "until then the limits of the first one hold") {
		t.Errorf("GET /rules does not show what is tolerated: %s", body)
	}
	server.Pause()
	want(t, "the answer while Redis hangs", codes.Unavailable.String(), func() string {
		_, err := ask(300*time.Millisecond, 1)
		return status.Code(err).String()
	})
	server.Resume()
	want(t, "the answer when Redis is back", codes.OK.String(), func() string {
		_, err := ask(patience, 1)
		return status.Code(err).String()
	})
}

// A process in shadow mode denies nothing, also by a limit that the request brings along.
func TestShadowModeOfAProcess(t *testing.T) {
	o := options(t, rulesOf("1"))
	o.ShadowMode = true
	p := start(t, o)
	for range 3 {
		if got := p.ask("me"); got != "OK" {
			t.Errorf("got %s, want OK", got)
		}
	}
	res, err := p.client.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{
		Domain: "shop",
		Descriptors: []*commonpb.RateLimitDescriptor{{
			Entries: []*commonpb.RateLimitDescriptor_Entry{{Key: "other", Value: "a"}},
			Limit:   &commonpb.RateLimitDescriptor_RateLimitOverride{Unit: typepb.RateLimitUnit_YEAR},
		}},
	})
	if err != nil || res.GetOverallCode() != pb.RateLimitResponse_OK {
		t.Errorf("an override of 0: %v, %v; want OK", res, err)
	}
}
