package rls

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

const previewRules = `
domain: shop
descriptors:
  - {key: fixed, rate_limit: {requests_per_unit: 5, unit: minute}, response: {headers: {x-why: fixed}, body: no}}
  - {key: funnel, rate_limit: {name: f, algorithm: funnel, requests_per_unit: 5, unit: second, burst: 7}}
  - {key: bucket, rate_limit: {algorithm: token_bucket, requests_per_unit: 3, unit: second, burst: 6, refill: interval}}
  - {key: window, rate_limit: {algorithm: sliding_window, requests_per_unit: 6, unit: second}}
  - {key: log, rate_limit: {algorithm: sliding_log, requests_per_unit: 6, unit: second}}
  - {key: bursty, rate_limit: {algorithm: smooth_bursty, requests_per_unit: 4, unit: second}}
  - {key: leaky, rate_limit: {algorithm: leaky_queue, requests_per_unit: 4, unit: second, burst: 6}}
  - {key: short, rate_limit: {algorithm: leaky_queue, requests_per_unit: 3, unit: second, burst: 6, max_wait: 700ms}}
  - {key: warm, rate_limit: {algorithm: smooth_warming_up, requests_per_unit: 4, unit: second, max_wait: 1s}}
  - {key: flight, rate_limit: {algorithm: concurrency, requests_per_unit: 4}}
  - {key: shadow, shadow_mode: true, rate_limit: {requests_per_unit: 1, unit: second}}
  - {key: quota, quota_mode: true, rate_limit: {requests_per_unit: 1, unit: second}}
  - {key: free, rate_limit: {unlimited: true, replaces: [{name: f}]}}
  - {key: none}
`

func drawRequest(t *rapid.T) *pb.RateLimitRequest {
	keys := []string{
		"fixed", "funnel", "bucket", "window", "log", "bursty", "leaky", "short", "warm", "flight", "shadow", "quota", "free",
		"none", "unknown",
	}
	req := &pb.RateLimitRequest{Domain: "shop"}
	for _, key := range rapid.SliceOfN(rapid.SampledFrom(keys), 1, 3).Draw(t, "keys") {
		cost := rapid.Uint64Range(0, 8).Draw(t, "cost")
		req.Descriptors = append(req.Descriptors, costing(cost, descriptor(key+"=v")))
	}
	return req
}

// Peek returns a request's result without charging, so that a later request gets the same result as without Peek.
func TestPeekIsTheAnswer(t *testing.T) {
	set := compile(t, previewRules)
	rapid.Check(t, func(rt *rapid.T) {
		chargeEach := rapid.Bool().Draw(rt, "charge_each")
		eachOrNot := func(o *options) { o.ChargeEach = chargeEach }
		s, c := service(t, previewRules, eachOrNot)
		twin, twinClock := service(t, previewRules, eachOrNot)
		for range rapid.IntRange(1, 12).Draw(rt, "requests") {
			pause := time.Duration(rapid.IntRange(0, 1500).Draw(rt, "pause")) * time.Millisecond
			c.advance(pause)
			twinClock.advance(pause)
			req := drawRequest(rt)
			var peeked *decide.Verdict
			for range 2 {
				peeked = peek(rt, s, set, req)
			}
			got, want := decideNow(rt, s, req), decideNow(rt, twin, req)
			if peeked.Denied != got.Denied || got.Denied != want.Denied || !slices.Equal(got.Decisions, want.Decisions) {
				rt.Fatalf("a peek at %v says denied: %t, the request %t of %+v; without a peek it is %t of %+v", req,
					peeked.Denied, got.Denied, got.Decisions, want.Denied, want.Decisions)
			}
		}
	})
}

// translated is a call with the request.
func translated(t rapid.TB, s *Service, req *pb.RateLimitRequest) *call {
	t.Helper()
	wire, err := proto.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	c := s.get()
	if err := c.decode(mem.BufferSlice{mem.SliceBuffer(wire)}); err != nil {
		t.Fatal(err)
	}
	return c
}

func peek(t rapid.TB, s *Service, rules *descriptors.Set, req *pb.RateLimitRequest) *decide.Verdict {
	t.Helper()
	v, err := s.o.Decider.Peek(context.Background(), rules, translated(t, s, req).Request)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// decideNow returns the verdict of a request that is not delayed.
func decideNow(t rapid.TB, s *Service, req *pb.RateLimitRequest) *decide.Verdict {
	t.Helper()
	r := translated(t, s, req).Request
	if s.o.Decider.Decide(r); r.Err != nil {
		t.Fatal(r.Err)
	}
	held := r.Verdict.TakeHeld()
	held.Keep()
	held.Release(context.Background())
	return &r.Verdict
}

// Peek calls neither the Observer nor a Watcher, even while the store fails. The verdict has the store's error.
func TestPeekIsSilent(t *testing.T) {
	s, _ := service(t, previewRules, func(o *options) {
		o.Store, o.Observer, o.Watchers = failing{}, loud{t}, []decide.Watcher{loud{t}}
	})
	v := peek(t, s, compile(t, previewRules), request(descriptor("fixed=v")))
	if v.StoreErr == nil || v.Denied || v.Outcome(0) != decide.AllowedLocally {
		t.Errorf("a peek while the store fails: %+v", v)
	}
	r := s.o.Decider.NewRequest()
	r.Domain = "shop"
	r.Add(decide.Descriptor{})
	_, err := s.o.Decider.Peek(t.Context(), compile(t, previewRules), r)
	if want := "descriptors[0].entries: must not be empty; send at least one key and value"; err == nil ||
		err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

type failing struct{}

func (failing) Take(context.Context, []limiter.Hit, []limiter.Decision) error {
	return fmt.Errorf("%w: %w", limiter.ErrUnavailable, errors.New("it is off"))
}

// loud is an Observer that fails the test when it is called.
type loud struct{ testing.TB }

func (l loud) Decided(*descriptors.Limit, decide.Outcome, int64, *limiter.Decision) {
	l.Error("Decided was called")
}
func (l loud) Answered(*descriptors.Domain, bool)     { l.Error("Answered was called") }
func (l loud) Ended(*descriptors.Limit, int64, int64) { l.Error("Ended was called") }
func (l loud) NotEnded(*descriptors.Limit)            { l.Error("NotEnded was called") }
func (l loud) StoreFailed(error)                      { l.Error("StoreFailed was called") }
func (l loud) Watch(context.Context, *decide.Verdict) { l.Error("Watch was called") }
