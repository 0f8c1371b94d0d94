package redisstore_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// callOf returns a call with these hits.
func callOf(t *testing.T, hits ...limiter.Hit) *storekit.Call {
	t.Helper()
	return &storekit.Call{Ctx: t.Context(), Hits: hits, Out: make([]limiter.Decision, len(hits))}
}

// TakeAll decides each request as Take does, with hits that are charged together or independently. An invalid request
// gets its own error.
func TestTakeAllAnswersAsTake(t *testing.T) {
	clock := func() int64 { return 1_000_000_000_000_000 }
	s := open(t, redistest.Start(t).URL(), redisstore.Options{Now: clock, Timeout: 5 * time.Second})
	policies := []*limiter.Policy{
		funnel(t, 3, time.Hour),
		policy(t, limiter.Params{Algorithm: limiter.FixedWindow, Limit: 4, Window: time.Hour}),
		policy(t, limiter.Params{Algorithm: limiter.TokenBucket, Limit: 5, Window: time.Hour}),
	}
	for _, byItself := range []bool{false, true} {
		for _, mode := range []limiter.Mode{limiter.Enforce, limiter.Shadow, limiter.Quota} {
			for round := range 7 {
				request := func(how string) (hits []limiter.Hit) {
					for i, p := range policies[:1+round%3] {
						hits = append(hits, limiter.Hit{
							Key: fmt.Sprintf("%s-%t-%v-%d", how, byItself, mode, i), Policy: p, N: 1, ByItself: byItself, Mode: mode,
						})
					}
					return hits
				}
				hits := request("now")
				want := make([]limiter.Decision, len(hits))
				if err := s.Take(t.Context(), hits, want); err != nil {
					t.Fatal(err)
				}
				wrong, got := callOf(t, limiter.Hit{Key: "k", N: 1}), callOf(t, request("together")...)
				s.TakeAll([]*storekit.Call{wrong, got, callOf(t)})
				if got.Err != nil || !errors.Is(wrong.Err, limiter.ErrInvalid) {
					t.Fatalf("%v, and of a request without a policy: %v", got.Err, wrong.Err)
				}
				if diff := cmp.Diff(want, got.Out); diff != "" {
					t.Errorf("by itself %t, mode %v, round %d (-Take +TakeAll):\n%s", byItself, mode, round, diff)
				}
			}
		}
	}
}

// Requests of one TakeAll share a script call. Counts are exact, even with concurrent calls of Take.
func TestTakeAllSharesACall(t *testing.T) {
	s := open(t, redistest.Start(t).URL(), redisstore.Options{Timeout: 5 * time.Second})
	p := policy(t, limiter.Params{Algorithm: limiter.FixedWindow, Limit: 200, Window: 24 * time.Hour})
	scripts := func() uint64 { return s.Stats().Calls }
	together := func(n int) (admitted int64) {
		calls := make([]*storekit.Call, n)
		for i := range calls {
			calls[i] = callOf(t, limiter.Hit{Key: "k", Policy: p, N: 1})
		}
		s.TakeAll(calls)
		for _, c := range calls {
			if c.Err != nil {
				t.Error(c.Err)
			} else if c.Out[0].Allowed {
				admitted++
			}
		}
		return admitted
	}
	before := scripts()
	if n := together(50); n != 50 || scripts() != before+1 {
		t.Errorf("%d of 50 pass in %d script calls, want all in one", n, scripts()-before)
	}
	var admitted atomic.Int64
	var wait sync.WaitGroup
	for g := range 16 {
		wait.Go(func() {
			for range 25 {
				if g%2 == 0 {
					admitted.Add(together(2))
				} else if take(t, s, "k", p, 1).Allowed {
					admitted.Add(1)
				}
			}
		})
	}
	wait.Wait()
	if admitted.Load() != 150 {
		t.Errorf("%d more pass, want 150", admitted.Load())
	}
}
