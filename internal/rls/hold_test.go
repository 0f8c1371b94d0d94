package rls

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

const queueRules = `
domain: shop
descriptors:
  - {key: print, rate_limit: {algorithm: leaky_queue, requests_per_unit: 5, unit: second, burst: 3}}
  - {key: shadow, shadow_mode: true, rate_limit: {algorithm: leaky_queue, requests_per_unit: 1, unit: hour}}
  - {key: mail, rate_limit: {algorithm: smooth_bursty, requests_per_unit: 1, unit: second, max_wait: 10s}}
  - {key: ban, rate_limit: {requests_per_unit: 0, unit: second}}
  - {key: flight, rate_limit: {name: flights, algorithm: concurrency, requests_per_unit: 1, lease: 60s}}
`

// queueing is a service whose store's clock is synctest's.
func queueing(t *testing.T, change ...func(*options)) *Service {
	t.Helper()
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	s, _ := service(t, queueRules, append(change, func(o *options) { o.Store = store })...)
	return s
}

// answered is when a request was answered, and how.
type answered struct {
	after time.Duration
	code  pb.RateLimitResponse_Code
	err   error
}

// askAtOnce asks n times at the same moment, in order.
func askAtOnce(ctx context.Context, s *Service, req *pb.RateLimitRequest, n int) []answered {
	out := make([]answered, n)
	start := time.Now()
	var wg sync.WaitGroup
	for i := range out {
		wg.Go(func() {
			res, err := send(ctx, s, req)
			out[i] = answered{time.Since(start), res.GetOverallCode(), err}
		})
		synctest.Wait()
	}
	wg.Wait()
	return out
}

func TestQueuedAnswersLeaveEvenlySpaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := queueing(t)
		got := askAtOnce(t.Context(), s, request(descriptor("print=p")), 6)
		for i, a := range got {
			want := answered{after: time.Duration(i) * 200 * time.Millisecond, code: pb.RateLimitResponse_OK}
			if i > 3 { // one goes at once, three wait
				want = answered{code: pb.RateLimitResponse_OVER_LIMIT}
			}
			if a != want {
				t.Errorf("request %d: %+v, want %+v", i, a, want)
			}
		}
		if n := s.o.Decider.Delayed().Now; n != 0 {
			t.Errorf("%d places are still taken", n)
		}
	})
}

func TestNobodyWaitsInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := queueing(t)
		for name, tc := range map[string]struct {
			req  *pb.RateLimitRequest
			code pb.RateLimitResponse_Code
		}{
			"denied by another limit": {request(descriptor("print=p"), descriptor("ban=b")), pb.RateLimitResponse_OVER_LIMIT},
			"a shadow's wait":         {request(descriptor("shadow=s")), pb.RateLimitResponse_OK},
		} {
			for _, a := range askAtOnce(t.Context(), s, tc.req, 3) {
				if a != (answered{code: tc.code}) {
					t.Errorf("%s: %+v", name, a)
				}
			}
		}
	})
}

func TestSmoothBurstyMakesTheNextOnePay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := queueing(t)
		big := request(costing(6, descriptor("mail=m")))
		got := askAtOnce(t.Context(), s, big, 3)
		for i, want := range []answered{ // one second is saved up: the first costs 5 s, which the second waits
			{after: 0, code: pb.RateLimitResponse_OK},
			{after: 5 * time.Second, code: pb.RateLimitResponse_OK},
			{after: 0, code: pb.RateLimitResponse_OVER_LIMIT}, // 11 s are more than max_wait
		} {
			if got[i] != want {
				t.Errorf("request %d: %+v, want %+v", i, got[i], want)
			}
		}
	})
}

func TestHeldAnswersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := queueing(t, func(o *options) { o.MaxDelayed = 2 })
		got := askAtOnce(t.Context(), s, request(descriptor("print=p")), 4)
		for i, want := range []answered{
			{after: 0, code: pb.RateLimitResponse_OK},
			{after: 200 * time.Millisecond, code: pb.RateLimitResponse_OK},
			{after: 400 * time.Millisecond, code: pb.RateLimitResponse_OK},
			{after: 0, code: pb.RateLimitResponse_OVER_LIMIT}, // no place, though the queue has one
		} {
			if got[i] != want {
				t.Errorf("request %d: %+v, want %+v", i, got[i], want)
			}
		}
		if got := askAtOnce(t.Context(), s, request(descriptor("print=p")), 1)[0]; got.code != pb.RateLimitResponse_OK {
			t.Errorf("when the places are free again: %+v", got)
		}
	})
}

func TestHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := queueing(t, func(o *options) { o.MaxDelayed = 2 })
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if _, err := send(t.Context(), s, request(descriptor("print=p"))); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		if got, want := s.o.Decider.Delayed(), (decide.DelayedStats{Now: 2, Refused: 1}); got != want {
			t.Errorf("while two wait and one was refused: %+v, want %+v", got, want)
		}
		wg.Wait()
		if got, want := s.o.Decider.Delayed(), (decide.DelayedStats{Refused: 1}); got != want {
			t.Errorf("afterwards: %+v, want %+v", got, want)
		}
	})
}

func TestCancelledWhileHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := queueing(t)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		got := askAtOnce(ctx, s, request(descriptor("print=p")), 2)
		if got[1].after != 50*time.Millisecond || status.Code(got[1].err) != codes.DeadlineExceeded {
			t.Errorf("%+v, want DeadlineExceeded after 50ms", got[1])
		}
		if n := s.o.Decider.Delayed().Now; n != 0 {
			t.Errorf("%d places are still taken", n)
		}
	})
}

// What gives back or looks waits for nothing, and so needs no place among MaxDelayed: without its give-back, a
// request's place among those in flight would stay taken until its lease ends.
func TestGiveBacksAndLooksNeedNoPlace(t *testing.T) {
	type descriptors = []*commonpb.RateLimitDescriptor
	for name, tc := range map[string]struct {
		req     descriptors
		code    pb.RateLimitResponse_Code
		inUse   bool // the only place in flight, afterwards
		refused uint64
	}{
		"give-backs of both": {
			req: descriptors{negative(costing(1, descriptor("print=p"))), negative(costing(1, descriptor("flight=f")))},
		},
		"a give-back beside a look": {
			req: descriptors{costing(0, descriptor("print=p")), negative(costing(1, descriptor("flight=f")))},
		},
		"a look": {req: descriptors{costing(0, descriptor("print=p"))}, inUse: true},
		"a give-back in a request that is refused": {
			req:  descriptors{descriptor("print=p"), negative(costing(1, descriptor("flight=f")))},
			code: pb.RateLimitResponse_OVER_LIMIT, refused: 1,
		},
		"a hit in a request that is refused": {
			req:  descriptors{descriptor("print=p"), descriptor("flight=g")},
			code: pb.RateLimitResponse_OVER_LIMIT, refused: 1, inUse: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := queueing(t, func(o *options) { o.MaxDelayed = 1 })
				if got := ask(t, s, request(descriptor("flight=f"))); got.GetOverallCode() != pb.RateLimitResponse_OK {
					t.Fatalf("the only one in flight: %s", show(got))
				}
				var wg sync.WaitGroup
				for range 2 { // the second one waits, and has the only place
					wg.Go(func() { ask(t, s, request(descriptor("print=p"))) })
					synctest.Wait()
				}
				got := ask(t, s, request(tc.req...))
				if tc.code == 0 {
					tc.code = pb.RateLimitResponse_OK
				}
				if got.GetOverallCode() != tc.code || s.o.Decider.Delayed().Refused != tc.refused {
					t.Errorf("%s, and %d were refused; want %s and %d", show(got), s.o.Decider.Delayed().Refused, tc.code, tc.refused)
				}
				want := pb.RateLimitResponse_OK
				if tc.inUse {
					want = pb.RateLimitResponse_OVER_LIMIT
				}
				if next := ask(t, s, request(descriptor("flight=f"))); next.GetOverallCode() != want {
					t.Errorf("the next in flight: %s, want %s", show(next), want)
				}
				if other := ask(
					t,
					s,
					request(costing(0, descriptor("flight=g"))),
				); other.GetOverallCode() != pb.RateLimitResponse_OK {
					t.Errorf("a refused request was charged: %s", show(other))
				}
				wg.Wait()
			})
		})
	}
}
