package rls

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
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
  - {key: warm, rate_limit: {algorithm: smooth_warming_up, requests_per_unit: 4, unit: second, max_wait: 1s}}
  - {key: flight, rate_limit: {algorithm: concurrency, requests_per_unit: 4}}
  - {key: shadow, shadow_mode: true, rate_limit: {requests_per_unit: 1, unit: second}}
  - {key: quota, quota_mode: true, rate_limit: {requests_per_unit: 1, unit: second}}
  - {key: free, rate_limit: {unlimited: true, replaces: [{name: f}]}}
  - {key: none}
`

func drawRequest(t *rapid.T) *pb.RateLimitRequest {
	keys := []string{
		"fixed",
		"funnel",
		"bucket",
		"window",
		"log",
		"bursty",
		"leaky",
		"warm",
		"flight",
		"shadow",
		"quota",
		"free",
		"none",
		"unknown",
	}
	req := &pb.RateLimitRequest{Domain: "shop", HitsAddend: uint32(rapid.IntRange(0, 8).Draw(t, "hits"))}
	for _, key := range rapid.SliceOfNDistinct(rapid.SampledFrom(keys), 1, 3, rapid.ID).Draw(t, "keys") {
		req.Descriptors = append(req.Descriptors, descriptor(key+"=v"))
	}
	return req
}

// A verdict says what a request is answered, and a look beforehand says the same and charges nothing.
func TestLookIsTheAnswer(t *testing.T) {
	set := compile(t, previewRules)
	rapid.Check(t, func(rt *rapid.T) {
		s, c := service(t, previewRules)
		twin, twinClock := service(t, previewRules) // which is asked by requests
		for range rapid.IntRange(1, 12).Draw(rt, "requests") {
			pause := time.Duration(rapid.IntRange(0, 1500).Draw(rt, "pause")) * time.Millisecond
			c.advance(pause)
			twinClock.advance(pause)
			req := drawRequest(rt)
			var looked *decide.Verdict
			for range 2 {
				looked = look(rt, s, set, req)
			}
			got, err := s.o.Decider.Decide(context.Background(), translated(rt, s, req).Request)
			if err != nil {
				rt.Fatal(err)
			}
			got.Delay().End()
			if looked.Denied != got.Denied {
				rt.Fatalf("a look at %v says denied: %t, the request %t; %+v", req, looked.Denied, got.Denied, looked.Hits)
			}
			compareAnswer(rt, req, got, answerNow(rt, twin, req))
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
	if err := (codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(wire)}, c); err != nil {
		t.Fatal(err)
	}
	if err := c.translate(); err != nil {
		t.Fatal(err)
	}
	return c
}

func look(t rapid.TB, s *Service, rules *descriptors.Set, req *pb.RateLimitRequest) *decide.Verdict {
	t.Helper()
	v, err := s.o.Decider.Look(context.Background(), rules, translated(t, s, req).Request)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// answerNow is what a request is answered, not delayed.
func answerNow(t rapid.TB, s *Service, req *pb.RateLimitRequest) *pb.RateLimitResponse {
	t.Helper()
	c := translated(t, s, req)
	v, err := s.o.Decider.Decide(context.Background(), c.Request)
	if err != nil {
		t.Fatal(err)
	}
	v.Delay().End()
	res := c.report(v)
	var out pb.RateLimitResponse
	if err := proto.Unmarshal(res.buffer, &out); err != nil {
		t.Fatal(err)
	}
	return &out
}

func compareAnswer(t rapid.TB, req *pb.RateLimitRequest, got *decide.Verdict, want *pb.RateLimitResponse) {
	t.Helper()
	body := ""
	if response := got.Response(); response != nil && got.Denied {
		body = response.Body
	}
	said := fmt.Sprint(got.Denied, len(got.Statuses), body)
	isOver := want.GetOverallCode() == pb.RateLimitResponse_OVER_LIMIT
	if wanted := fmt.Sprint(isOver, len(want.GetStatuses()), string(want.GetRawBody())); said != wanted {
		t.Fatalf("the verdict on %v is %s, the answer %s", req, said, wanted)
	}
	for i, st := range want.GetStatuses() {
		g, isOver := &got.Statuses[i], st.GetCode() == pb.RateLimitResponse_OVER_LIMIT
		if g.Over != isOver || (g.Limit != nil) != (st.GetCurrentLimit() != nil) ||
			g.Limit != nil && decide.Saturate(g.Remaining) != st.GetLimitRemaining() {
			t.Fatalf("status %d of the verdict on %v is %+v, of the answer %v", i, req, g, st)
		}
	}
	var headers, wanted []string
	for _, h := range want.GetResponseHeadersToAdd() {
		wanted = append(wanted, h.GetKey()+": "+h.GetValue())
	}
	got.Headers(func(h decide.Header) bool {
		if h.IsNumber {
			h.Text = strconv.FormatInt(h.Number, 10)
		}
		headers = append(headers, h.Name+": "+h.Text)
		return true
	})
	if !slices.Equal(headers, wanted) {
		t.Fatalf("the verdict on %v has the headers %v, the answer %v", req, headers, wanted)
	}
}

// Neither the Observer nor a Watcher hears of a look, also while the store fails. The verdict has the reason.
func TestLookIsSilent(t *testing.T) {
	s, _ := service(t, previewRules, func(o *options) {
		o.Store, o.Observer, o.Watchers = failing{}, loud{t}, []decide.Watcher{loud{t}}
	})
	v := look(t, s, compile(t, previewRules), request(descriptor("fixed=v")))
	if v.StoreErr == nil || v.Denied || v.Outcome(0) != decide.AllowedOnFailure {
		t.Errorf("a look while the store fails: %+v", v)
	}
	r := s.o.Decider.NewRequest()
	r.Domain = "shop"
	r.Add(decide.Descriptor{})
	_, err := s.o.Decider.Look(t.Context(), compile(t, previewRules), r)
	if want := "descriptors[0].entries: must not be empty; send at least one key and value"; err == nil ||
		err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

type failing struct{}

func (failing) Take(context.Context, []limiter.Hit, []limiter.Decision) error {
	return fmt.Errorf("%w: %w", limiter.ErrUnavailable, errors.New("it is off"))
}

// loud complains of whatever it is told.
type loud struct{ testing.TB }

func (l loud) Decided(*descriptors.Limit, decide.Outcome, int64, *limiter.Decision) {
	l.Error("Decided was called")
}
func (l loud) Answered(*descriptors.Domain, bool)     { l.Error("Answered was called") }
func (l loud) StoreFailed(error)                      { l.Error("StoreFailed was called") }
func (l loud) Watch(context.Context, *decide.Verdict) { l.Error("Watch was called") }
