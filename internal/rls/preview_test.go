package rls

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

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

func drawQuestion(t *rapid.T) Question {
	keys := []string{"fixed", "funnel", "bucket", "window", "log", "bursty", "leaky", "warm", "flight", "shadow", "quota", "free", "none", "unknown"}
	q := Question{Domain: "shop", Hits: uint32(rapid.IntRange(0, 8).Draw(t, "hits"))}
	for _, key := range rapid.SliceOfNDistinct(rapid.SampledFrom(keys), 1, 3, rapid.ID).Draw(t, "keys") {
		q.Descriptors = append(q.Descriptors, []descriptors.Entry{{Key: key, Value: "v"}})
	}
	return q
}

// A preview says what a request is answered, and a look beforehand says the same and charges nothing.
func TestPreviewIsTheAnswer(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s, c := service(t, previewRules)
		twin, twinClock := service(t, previewRules) // which is asked by requests
		for range rapid.IntRange(1, 12).Draw(rt, "requests") {
			pause := time.Duration(rapid.IntRange(0, 1500).Draw(rt, "pause")) * time.Millisecond
			c.advance(pause)
			twinClock.advance(pause)
			q := drawQuestion(rt)
			q.Look = true
			var looked *Preview
			for range 2 {
				looked = preview(rt, s, q)
			}
			q.Look = false
			got := preview(rt, s, q)
			if looked.Denied != got.Denied {
				rt.Fatalf("a look at %+v says denied: %t, the request %t; %+v", q, looked.Denied, got.Denied, looked.Hits)
			}
			compareAnswer(rt, q, got, requested(rt, twin, q))
		}
	})
}

func preview(t rapid.TB, s *Service, q Question) *Preview {
	t.Helper()
	p, err := s.Preview(context.Background(), s.o.Rules(), q)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// requested is what a request with the question is answered, not held back.
func requested(t rapid.TB, s *Service, q Question) *pb.RateLimitResponse {
	t.Helper()
	req := &pb.RateLimitRequest{Domain: q.Domain, HitsAddend: q.Hits}
	for _, es := range q.Descriptors {
		req.Descriptors = append(req.Descriptors, descriptor(es[0].Key+"="+es[0].Value))
	}
	wire, err := proto.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	sc := s.get()
	if err := (codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(wire)}, sc); err != nil {
		t.Fatal(err)
	}
	if err := sc.findHits(s.o.Rules()); err != nil {
		t.Fatal(err)
	}
	res, _, err := s.answer(context.Background(), sc)
	if err != nil {
		t.Fatal(err)
	}
	var out pb.RateLimitResponse
	if err := proto.Unmarshal(res.buffer, &out); err != nil {
		t.Fatal(err)
	}
	return &out
}

func compareAnswer(t rapid.TB, q Question, got *Preview, want *pb.RateLimitResponse) {
	t.Helper()
	said := fmt.Sprint(got.Denied, len(got.Statuses), got.Body)
	if wanted := fmt.Sprint(want.GetOverallCode() == pb.RateLimitResponse_OVER_LIMIT, len(want.GetStatuses()), string(want.GetRawBody())); said != wanted {
		t.Fatalf("the preview of %+v is %s, the answer %s", q, said, wanted)
	}
	for i, st := range want.GetStatuses() {
		over := st.GetCode() == pb.RateLimitResponse_OVER_LIMIT
		if g := got.Statuses[i]; g.Over != over || g.Limited != (st.GetCurrentLimit() != nil) || g.Remaining != st.GetLimitRemaining() {
			t.Fatalf("status %d of the preview of %+v is %+v, of the answer %v", i, q, g, st)
		}
	}
	var headers []descriptors.Header
	for _, h := range want.GetResponseHeadersToAdd() {
		headers = append(headers, descriptors.Header{Name: h.GetKey(), Value: h.GetValue()})
	}
	if !slices.Equal(headers, got.Headers) {
		t.Fatalf("the preview of %+v has the headers %v, the answer %v", q, got.Headers, headers)
	}
}

// Neither the Observer nor a Watcher hears of a preview, also while the store fails; the failure's reason is told.
func TestPreviewIsSilent(t *testing.T) {
	s, _ := service(t, previewRules, func(o *Options) {
		o.Store, o.Observer, o.Watchers = failing{}, loud{t}, []Watcher{loud{t}}
	})
	p := preview(t, s, Question{Domain: "shop", Descriptors: [][]descriptors.Entry{{{Key: "fixed", Value: "v"}}}})
	if !p.Failed || p.Denied || p.Err == nil || p.Hits[0].Outcome != AllowedOnFailure {
		t.Errorf("a preview while the store fails: %+v", p)
	}
	_, err := s.Preview(t.Context(), s.o.Rules(), Question{Domain: "shop", Descriptors: [][]descriptors.Entry{nil}})
	if want := "descriptors[0].entries: must not be empty; send at least one key and value"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

type failing struct{}

func (failing) Take(context.Context, []limiter.Hit, []limiter.Decision) error {
	return fmt.Errorf("%w: %w", limiter.ErrUnavailable, errors.New("it is off"))
}

// loud complains of whatever it is told.
type loud struct{ testing.TB }

func (l loud) Decided(*descriptors.Limit, Outcome, int64, *limiter.Decision) {
	l.Error("Decided was called")
}
func (l loud) Answered(*descriptors.Domain, bool) { l.Error("Answered was called") }
func (l loud) StoreFailed(error)                  { l.Error("StoreFailed was called") }
func (l loud) Rejected(codes.Code)                { l.Error("Rejected was called") }
func (l loud) Watch(context.Context, View)        { l.Error("Watch was called") }
