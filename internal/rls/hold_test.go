package rls

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

const queueRules = `
domain: shop
descriptors:
  - {key: print, rate_limit: {algorithm: leaky_queue, requests_per_unit: 5, unit: second, burst: 3}}
  - {key: shadow, shadow_mode: true, rate_limit: {algorithm: leaky_queue, requests_per_unit: 1, unit: hour}}
  - {key: ban, rate_limit: {requests_per_unit: 0, unit: second}}
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
