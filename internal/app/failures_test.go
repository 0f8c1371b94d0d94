package app

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/grpcserver"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// A user who may not run scripts, or a command that they call, is an error at the start, which names the missing right.
func TestMissingRight(t *testing.T) {
	const hint = `check="grant Weir's user in Redis the missing right (the error names it, or it is `
	for right, says := range map[string]string{
		"evalsha": "no permissions to run the 'evalsha' command", "eval": "no permissions to run the 'eval' command",
		"set": "+set", "mget": "+mget", // Redis 7.0 does not name the command that the script calls
	} {
		server := redistest.Start(t)
		redistest.Do(t, server, "acl", "setuser", "weir", "on", ">secret", "~*", "&*", "+@all", "-"+right)
		o := options(t, rulesOf("1"))
		o.Store = "redis://weir:secret@" + server.Addr()
		p := start(t, o)
		want(t, "the error without "+right, "1 line", func() string {
			for line := range strings.Lines(p.log.String()) {
				if strings.Contains(line, `level=ERROR msg="Redis returns errors at redis://`+server.Addr()) &&
					strings.Contains(line, says) && strings.Contains(line, hint) {
					return "1 line"
				}
			}
			return p.log.String()
		})
	}
}

// Where requests ask two stores, as the documentation's burst and daily limits do, the log and the metrics blame the
// one that hangs, and requests stop waiting for it.
func TestHangingNamedStoreIsBlamed(t *testing.T) {
	first, daily := redistest.Start(t), redistest.Start(t)
	o := options(t, "domain: shop\ndescriptors: [{key: client, rate_limits: ["+
		"{name: burst, algorithm: token_bucket, requests_per_unit: 50, unit: second}, "+
		"{name: daily, store: daily, requests_per_unit: 100000, unit: day}]}]\n")
	o.Store, o.NamedStores = first.URL(), map[string]string{"daily": daily.URL()}
	o.StoreTimeout = 250 * time.Millisecond
	p := start(t, o)
	want(t, "readiness", "200", p.ready)
	p.ask("me")
	daily.Pause()
	defer daily.Resume()
	want(t, "the breaker", "1", func() string {
		p.ask("me")
		_, metrics := p.http("GET", "/metrics")
		_, open, _ := strings.Cut(metrics, "\nweir_store_breaker_open ")
		open, _, _ = strings.Cut(open, "\n")
		return open
	})
	if n := p.logged("since "); n != 1 || p.logged(`Redis does not respond in time at daily=`+daily.URL()) == 0 {
		t.Errorf("log:\n%s\nwant one outage, of %s", p.log, daily.URL())
	}
	_, metrics := p.http("GET", "/metrics")
	if !strings.Contains(metrics, "\nweir_store_failure_policy_seconds{store=\"(default)\"} 0\n") ||
		strings.Contains(metrics, "\nweir_store_failure_policy_seconds{store=\"daily\"} 0\n") {
		t.Errorf("the metric for how long the policy decides blames the wrong store:\n%s", metrics)
	}
}

// A call that the caller gives up at the end of its timeout is counted by itself: Envoy lets such a request pass. So is
// one that was given up before this process began to decide it. One that is given up later, since its client has gone,
// passes nowhere.
func TestAbandonedRequests(t *testing.T) {
	p := start(t, options(t, rulesOf("1")))
	info := &grpc.UnaryServerInfo{FullMethod: pb.RateLimitService_ShouldRateLimit_FullMethodName}
	untilGone := func(ctx context.Context, _ any) (any, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	calls := grpcserver.NewCalls(p.app.metrics, p.app.o.Log)
	gone, cancel := context.WithTimeout(t.Context(), time.Hour)
	_, _ = calls.Unary(gone, nil, info, func(ctx context.Context, req any) (any, error) {
		cancel()
		return untilGone(ctx, req)
	})
	_, _ = calls.Unary(gone, nil, info, untilGone)
	late, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, _ = calls.Unary(late, nil, info, untilGone)
	if got := p.metric("weir_requests_abandoned_total"); got != "2" {
		t.Errorf("%s abandoned requests, want 2", got)
	}
}

// The end of a request that is reported while Redis hangs is sent again when Redis responds.
func TestEndsOutliveAnOutage(t *testing.T) {
	server := redistest.Start(t)
	o := options(t, "domain: shop\ndescriptors: [{key: client, rate_limit: {requests_per_unit: 10000, unit: year, "+
		"reservation: {estimate: 1000}}}]\n")
	o.Store, o.StoreTimeout = server.URL(), 250*time.Millisecond
	p := start(t, o)
	want(t, "readiness", "200", p.ready)
	send := func(cost uint64, token string) (start string, remaining uint32) {
		t.Helper()
		d := &commonpb.RateLimitDescriptor{
			Entries:    []*commonpb.RateLimitDescriptor_Entry{{Key: "client", Value: "me"}},
			HitsAddend: wrapperspb.UInt64(cost),
		}
		if token != "" {
			d.Entries = append(d.Entries, &commonpb.RateLimitDescriptor_Entry{Key: decide.StartKey, Value: token})
		}
		r := &pb.RateLimitRequest{Domain: "shop", Descriptors: []*commonpb.RateLimitDescriptor{d}}
		res, err := p.client.ShouldRateLimit(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		start = res.GetDynamicMetadata().GetFields()[decide.StartKey].GetStringValue()
		return start, res.GetStatuses()[0].GetLimitRemaining()
	}
	token, remaining := send(1, "")
	if token == "" || remaining != 9000 {
		t.Fatalf("token %q, %d remain", token, remaining)
	}
	server.Pause()
	defer server.Resume()
	want(t, "the breaker", "open", func() string {
		send(0, "")
		if p.app.store.Breaker.Open() == 0 {
			return "closed"
		}
		return "open"
	})
	send(400, token)
	server.Resume()
	want(t, "remaining hits", "9600", func() string {
		_, remaining := send(0, "")
		return strconv.FormatUint(uint64(remaining), 10)
	})
	if lost := p.metric(`weir_reservation_ends_lost_total{domain="shop",limit="",rule="client"}`); lost != "0" {
		t.Errorf("%s ends are lost", lost)
	}
}
