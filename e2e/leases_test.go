//go:build e2e

package e2e

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// Five processes share limits in one Redis, each with permits on lease.
var leasedRules = strings.ReplaceAll(`
domain: shop
descriptors:
  - {key: log, rate_limit: {algorithm: sliding_log, requests_per_unit: 500, unit: second, LEASED}}
  - {key: funnel, rate_limit: {algorithm: funnel, requests_per_unit: 500, unit: second, burst: 200, LEASED}}
  - {key: fixed, rate_limit: {algorithm: fixed_window, requests_per_unit: 500, unit: second, LEASED}}
  - {key: day, rate_limit: {algorithm: sliding_window, requests_per_unit: 100000000, unit: day, LEASED}}
`, "LEASED", "consistency: leased, lease_for: 100ms")

// decided is one request that was let through: it was decided between these times.
type decided struct{ began, ended time.Time }

// startFleet serves rules by several processes on one Redis.
func startFleet(t *testing.T, n int, text string) []*weir {
	t.Helper()
	redis := redistest.Start(t)
	rules := ruleFile(t, text)
	fleet := make([]*weir, n)
	for i := range fleet {
		// The time is not what is tested: a busy machine must not turn requests into failures.
		fleet[i] = startWeir(t, rules, "--store", redis.URL(), "--store-timeout", "1s")
	}
	return fleet
}

// flood asks all processes for one key, each by so many callers with a pause between requests, until ctx is done. It
// returns what passed and how many were asked.
func flood(
	ctx context.Context,
	t *testing.T,
	fleet []*weir,
	key string,
	callers int,
	pause time.Duration,
) (passed []decided, asked int) {
	t.Helper()
	req := question(key, "x")
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, s := range fleet {
		service := s.client(t)
		for range callers {
			wg.Go(func() {
				var mine []decided
				n := 0
				for ; ctx.Err() == nil; n++ {
					began := time.Now()
					res, err := service.ShouldRateLimit(context.WithoutCancel(ctx), req) // the last one is answered, too
					if err != nil {
						t.Error(err)
						return
					}
					if res.GetOverallCode() == pb.RateLimitResponse_OK {
						mine = append(mine, decided{began, time.Now()})
					}
					time.Sleep(pause)
				}
				mu.Lock()
				defer mu.Unlock()
				passed, asked = append(passed, mine...), asked+n
			})
		}
	}
	wg.Wait()
	slices.SortFunc(passed, func(a, b decided) int { return a.began.Compare(b.began) })
	return passed, asked
}

// mostWithin is the highest number of requests that were for certain decided within one window.
func mostWithin(passed []decided, window time.Duration) (most int) {
	for i, from := range passed {
		n := 0
		for _, p := range passed[i:] {
			if p.began.After(from.began.Add(window)) {
				break
			}
			if p.ended.Before(from.began.Add(window)) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// Five processes with three times as many requests as the limit allows, and far more in bursts, let pass what one
// store would, and at most what each may have on lease: a tenth of the capacity.
func TestLeasesHoldTheLimit(t *testing.T) {
	fleet := startFleet(t, 5, leasedRules)
	t.Run("at once", func(t *testing.T) {
		for _, tt := range []struct {
			key             string
			bound, capacity int
		}{
			{"log", 500, 500},
			{"funnel", 200 + 500, 200},
			{"fixed", 2 * 500, 500},
		} {
			t.Run(tt.key, func(t *testing.T) {
				t.Parallel()
				var passed []decided
				asked := 0
				for _, load := range []struct {
					callers int
					pause   time.Duration
					long    time.Duration
				}{ // below the limit, so that all have much on lease; far above it; and below it again
					{4, 50 * time.Millisecond, time.Second},
					{8, casetest.Pick(10*time.Millisecond, 5*time.Millisecond), 1500 * time.Millisecond},
					{4, 50 * time.Millisecond, time.Second},
					{8, casetest.Pick(10*time.Millisecond, 5*time.Millisecond), 500 * time.Millisecond},
				} {
					ctx, cancel := context.WithTimeout(t.Context(), load.long)
					p, n := flood(ctx, t, fleet, tt.key, load.callers, load.pause)
					cancel()
					passed, asked = append(passed, p...), asked+n
				}
				most, bound := mostWithin(passed, time.Second), tt.bound+5*tt.capacity/10
				t.Logf("%d of %d passed, at most %d in a second; the store alone lets %d pass, the bound is %d",
					len(passed), asked, most, tt.bound, bound)
				if most > bound {
					t.Errorf("%d passed in a second, want at most %d", most, bound)
				}
				if most < 400 && asked >= 2000 { // a busy machine asks less, and may not reach the limit
					t.Errorf("%d passed in a second: the limit was not reached", most)
				}
			})
		}
	})
	if n := sum(fleet, "weir_lease_answers_total"); n < 100 {
		t.Errorf("%v requests were decided by leases: too few to tell", n)
	}
}

// A process that stops releases its leased permits.
func TestLeasesEndWithTheProcess(t *testing.T) {
	fleet := startFleet(t, 2, leasedRules)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, asked := flood(ctx, t, fleet[:1], "day", 8, 0)
	if code := fleet[0].Terminate(proctest.Patience); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if got := remaining(t, fleet[1], "day"); got != 100_000_000-int64(asked) {
		t.Errorf("%d remain after %d requests", got, asked)
	}
}

// remaining returns the remaining hits in the store, without charging any.
func remaining(t *testing.T, s *weir, key string) int64 {
	t.Helper()
	look := question(key, "x")
	look.Descriptors[0].HitsAddend = wrapperspb.UInt64(0)
	res, err := s.client(t).ShouldRateLimit(t.Context(), look)
	if err != nil {
		t.Fatal(err)
	}
	return int64(res.GetStatuses()[0].GetLimitRemaining())
}
