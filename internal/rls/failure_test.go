package rls

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

const failureRules = `
domain: shop
descriptors:
  - {key: soft, rate_limit: {name: soft, unit: minute, requests_per_unit: 5}}
  - {key: hard, rate_limit: {name: hard, unit: minute, requests_per_unit: 5, on_store_failure: deny}}
  - {key: tank, rate_limit: {name: tank, algorithm: funnel, unit: minute, requests_per_unit: 5, burst: 9}}
  - key: trial
    shadow_mode: true
    rate_limit: {name: trial, unit: minute, requests_per_unit: 5, on_store_failure: deny}
  - key: east
    quota_mode: true
    rate_limit: {name: east, unit: minute, requests_per_unit: 5, on_store_failure: deny}
  - key: west
    quota_mode: true
    rate_limit: {name: west, unit: minute, requests_per_unit: 5}
  - key: both
    rate_limits:
      - {name: lenient, unit: minute, requests_per_unit: 5}
      - {name: strict, unit: hour, requests_per_unit: 50, on_store_failure: deny}
`

var errDown = fmt.Errorf("%w: connection refused", limiter.ErrUnavailable)

func down(context.Context, []limiter.Hit, []limiter.Decision) error { return errDown }

func TestStoreFails(t *testing.T) {
	const failed = "store failed: limit store unavailable: connection refused"
	tests := []struct {
		name     string
		req      *pb.RateLimitRequest
		want     string
		observed []string
	}{
		{
			"allow is the default", request(descriptor("soft=a")),
			"OK | OK soft 5/minute left 5",
			[]string{failed, "soft allowed_on_failure 1"},
		},
		{
			"deny", request(descriptor("hard=a")),
			"OVER_LIMIT | OVER_LIMIT hard 5/minute left 0",
			[]string{failed, "hard denied_on_failure 1"},
		},
		{
			"both", request(descriptor("hard=a"), descriptor("soft=a"), descriptor("tank=a")),
			"OVER_LIMIT | OVER_LIMIT hard 5/minute left 0 | OK soft 5/minute left 5 | OK tank 5/minute left 9",
			[]string{failed, "hard denied_on_failure 1", "soft allowed_on_failure 1", "tank allowed_on_failure 1"},
		},
		{
			"several limits on one descriptor", request(descriptor("both=a")),
			"OVER_LIMIT | OVER_LIMIT strict 50/hour left 0",
			[]string{failed, "lenient allowed_on_failure 1", "strict denied_on_failure 1"},
		},
		{
			"shadow never denies", request(descriptor("trial=a")),
			"OK | OK trial 5/minute left 0",
			[]string{failed, "trial denied_on_failure 1"},
		},
		{
			"one quota of two", request(descriptor("east=a"), descriptor("west=a")),
			"OK | OVER_LIMIT east 5/minute left 0 | OK west 5/minute left 5",
			[]string{failed, "east denied_on_failure 1", "west allowed_on_failure 1"},
		},
		{
			"every quota", request(descriptor("east=a")),
			"OVER_LIMIT | OVER_LIMIT east 5/minute left 0",
			[]string{failed, "east denied_on_failure 1"},
		},
		{
			"a refund is never denied", request(negative(descriptor("hard=a"))),
			"OK | OK hard 5/minute left 5",
			[]string{failed, "hard allowed_on_failure -1"},
		},
		{"without a limit nobody asks", request(descriptor("nobody=knows")), "OK | OK", nil},
	}
	rec := &recorder{}
	s, _ := service(t, failureRules, func(o *options) { o.Store, o.Observer = storeFunc(down), rec })
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := show(ask(t, s, tt.req)); got != tt.want {
				t.Errorf("\n got %s\nwant %s", got, tt.want)
			}
			if diff := cmp.Diff(tt.observed, rec.take()); diff != "" {
				t.Errorf("observed (-want +got):\n%s", diff)
			}
		})
	}
}

// hung waits until its context is done, as a store does whose server does not answer.
func hung(ctx context.Context, _ []limiter.Hit, _ []limiter.Decision) error {
	<-ctx.Done()
	return fmt.Errorf("%w: %w", limiter.ErrUnavailable, ctx.Err())
}

func TestCallerGoes(t *testing.T) {
	tests := []struct {
		name string
		gone func(context.Context) (context.Context, context.CancelFunc)
		want codes.Code
		took time.Duration
	}{
		{"canceled before", func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return ctx, cancel
		}, codes.Canceled, 0},
		{"canceled meanwhile", func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(time.Millisecond, cancel)
			return ctx, cancel
		}, codes.Canceled, time.Millisecond},
		{"a deadline before the store's", func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 5*time.Millisecond)
		}, codes.DeadlineExceeded, 5 * time.Millisecond},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rec := &recorder{}
				ctx, cancel := tt.gone(context.Background())
				defer cancel()
				s, _ := service(t, failureRules, func(o *options) {
					o.Observer = rec
					o.Store = storeFunc(func(within context.Context, hits []limiter.Hit, out []limiter.Decision) error {
						if ctx.Err() != nil {
							t.Error("the store was asked for a caller who had gone")
						}
						return hung(within, hits, out)
					})
				})
				start := time.Now()
				res, err := send(ctx, s, request(descriptor("soft=a")))
				if status.Code(err) != tt.want || res != nil {
					t.Errorf("got %v, %v; want %s", res, err, tt.want)
				}
				if took := time.Since(start); took != tt.took {
					t.Errorf("took %s, want %s", took, tt.took)
				}
				if diff := cmp.Diff([]string{"rejected " + tt.want.String()}, rec.take()); diff != "" {
					t.Errorf("observed (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestObserved(t *testing.T) {
	rec := &recorder{}
	s, _ := service(t, `
domain: shop
descriptors:
  - {key: one, rate_limit: {name: one, algorithm: funnel, unit: hour, requests_per_unit: 1}}
  - {key: ten, rate_limit: {name: ten, algorithm: funnel, unit: hour, requests_per_unit: 10}}
  - {key: trial, shadow_mode: true, rate_limit: {name: trial, algorithm: funnel, unit: hour, requests_per_unit: 1}}
  - {key: east, quota_mode: true, rate_limit: {name: east, algorithm: funnel, unit: hour, requests_per_unit: 1}}
  - {key: west, quota_mode: true, rate_limit: {name: west, algorithm: funnel, unit: hour, requests_per_unit: 2}}
  - {key: free, rate_limit: {unlimited: true}}
`, func(o *options) { o.Observer = rec })
	steps := []struct {
		req  *pb.RateLimitRequest
		want []string
	}{
		{
			request(descriptor("one=a"), costing(3, descriptor("ten=a")), descriptor("trial=a"), descriptor("free=1")),
			[]string{"one allowed 1", "ten allowed 3", "trial allowed 1"},
		},
		{
			request(descriptor("one=a"), descriptor("ten=a"), costing(0, descriptor("ten=a")), descriptor("trial=a"),
				negative(descriptor("ten=a"))),
			[]string{"one denied 1", "ten uncharged 1", "ten allowed 0", "trial shadow_denied 1", "ten allowed -1"},
		},
		{request(descriptor("east=a"), descriptor("west=a")), []string{"east allowed 1", "west allowed 1"}},
		{request(descriptor("east=a"), descriptor("west=a")), []string{"east quota_over 1", "west allowed 1"}},
		{request(descriptor("east=a"), descriptor("west=a")), []string{"east denied 1", "west denied 1"}},
		{
			request(descriptor("one=a"), descriptor("east=a"), descriptor("west=b")),
			[]string{"one denied 1", "east quota_over 1", "west uncharged 1"},
		},
	}
	for i, st := range steps {
		ask(t, s, st.req)
		if diff := cmp.Diff(st.want, rec.take()); diff != "" {
			t.Errorf("step %d (-want +got):\n%s", i, diff)
		}
	}
}

// Under on_store_failure: local a limit counts this process's share in memory: a third of it, here. A request is still
// decided as a whole, together with limits that let nothing pass, or all.
func TestStoreFailsLocally(t *testing.T) {
	set, err := rulefile.CompileFor(
		descriptors.Process{OnStoreFailure: descriptors.Local, Replicas: 3},
		[]rulefile.File{{
			Name: "rules.yaml", Data: []byte(`
domain: shop
descriptors:
  - {key: six, rate_limit: {name: six, unit: hour, requests_per_unit: 6}}
  - {key: two, rate_limit: {name: two, algorithm: funnel, unit: hour, requests_per_unit: 2}}
  - {key: hard, rate_limit: {name: hard, unit: hour, requests_per_unit: 6, on_store_failure: deny}}
  - {key: soft, rate_limit: {name: soft, unit: hour, requests_per_unit: 6, on_store_failure: allow}}
  - {key: tasks, rate_limit: {name: tasks, algorithm: concurrency, requests_per_unit: 6}}
  - {key: free}
`),
		}},
	)
	if err != nil {
		t.Fatal(err)
	}
	steps := []struct {
		name     string
		req      *pb.RateLimitRequest
		want     string
		observed []string
	}{
		{
			"with one that denies, nothing is charged", request(descriptor("six=a"), descriptor("hard=a")),
			"OVER_LIMIT | OK six 6/hour left 2 reset 1h0m0s | OVER_LIMIT hard 6/hour left 0",
			[]string{"six allowed_locally 1", "hard denied_on_failure 1"},
		},
		{
			"with one that allows", request(descriptor("six=a"), descriptor("soft=a")),
			"OK | OK six 6/hour left 1 reset 1h0m0s | OK soft 6/hour left 6",
			[]string{"six allowed_locally 1", "soft allowed_on_failure 1"},
		},
		{
			"more than the share", request(costing(3, descriptor("six=b"))),
			"OVER_LIMIT | OVER_LIMIT six 6/hour left 0 reset 1h0m0s",
			[]string{"six denied_locally 3"},
		},
		{
			"all of it",
			request(descriptor("six=a")),
			"OK | OK six 6/hour left 0 reset 1h0m0s",
			[]string{"six allowed_locally 1"},
		},
		{
			"used up", request(descriptor("six=a")),
			"OVER_LIMIT | OVER_LIMIT six 6/hour left 0 reset 1h0m0s | Retry-After: 3600",
			[]string{"six denied_locally 1"},
		},
		{
			"fewer than there are replicas", request(descriptor("two=a")),
			"OK | OK two 2/hour left 0 reset 1h30m0s",
			[]string{"two allowed_locally 1"},
		},
		{
			"and then slower", request(descriptor("two=a")),
			"OVER_LIMIT | OVER_LIMIT two 2/hour left 0 reset 1h30m0s | Retry-After: 5400",
			[]string{"two denied_locally 1"},
		},
		{
			"a limit that the request brings along", request(limited(9, typepb.RateLimitUnit_HOUR, descriptor("free=a"))),
			"OK | OK 9/hour left 2 reset 1h0m0s",
			[]string{" allowed_locally 1"},
		},
		{
			"in flight",
			request(descriptor("tasks=a")),
			"OK | OK tasks 6/unknown left 1 reset 1m0s",
			[]string{"tasks allowed_locally 1"},
		},
		{
			"and back",
			request(negative(descriptor("tasks=a"))),
			"OK | OK tasks 6/unknown left 2 reset 0s",
			[]string{"tasks allowed_locally -1"},
		},
	}
	rec, c := &recorder{}, newClock()
	s, _ := service(t, failureRules, func(o *options) {
		o.Rules, o.Store, o.Local, o.Observer = func() *descriptors.Set { return set }, storeFunc(down), memory(t, c), rec
	})
	for _, tt := range steps {
		t.Run(tt.name, func(t *testing.T) {
			res := ask(t, s, tt.req)
			if got := show(res); got != tt.want {
				t.Errorf("\n got %s\nwant %s", got, tt.want)
			}
			if got := res.GetDynamicMetadata().GetFields()["leased"].GetNumberValue(); got == 1 != (tt.name == "in flight") {
				t.Errorf("leased %g", got)
			}
			want := append([]string{"store failed: limit store unavailable: connection refused"}, tt.observed...)
			if diff := cmp.Diff(want, rec.take()); diff != "" {
				t.Errorf("observed (-want +got):\n%s", diff)
			}
		})
	}
}
