package rls

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// down is a store that does not respond.
func down(context.Context, []limiter.Hit, []limiter.Decision) error {
	return fmt.Errorf("%w: connection refused", limiter.ErrUnavailable)
}

// hung waits until its context is done, like a store whose server does not respond.
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
				s, _ := service(t, parityRules, func(o *options) {
					o.Observer = rec
					o.Store = storeFunc(func(within context.Context, hits []limiter.Hit, out []limiter.Decision) error {
						if ctx.Err() != nil {
							t.Error("the store was asked for a caller who had gone")
						}
						return hung(within, hits, out)
					})
				})
				start := time.Now()
				res, err := send(ctx, s, request(descriptor("user=a")))
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

// A limit with on_store_failure: error leaves the decision to Envoy, with a status that says why.
func TestStoreFailsWithError(t *testing.T) {
	rec := &recorder{}
	s, _ := service(t, `
domain: shop
descriptors:
  - {key: fails, rate_limit: {unit: minute, requests_per_unit: 5, on_store_failure: error}}
`, func(o *options) { o.Store, o.Observer = storeFunc(down), rec })
	_, err := send(context.Background(), s, request(descriptor("fails=a")))
	const why = "the store did not respond, and on_store_failure is error"
	if st := status.Convert(err); st.Code() != codes.Unavailable || st.Message() != why {
		t.Errorf("got %v, want Unavailable: %s", err, why)
	}
	if said := rec.take(); len(said) != 2 || said[1] != "rejected Unavailable" {
		t.Errorf("observed %q, want that the store failed, and the error", said)
	}
}
