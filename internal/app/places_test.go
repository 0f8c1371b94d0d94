package app

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

const inFlight = `
domain: shop
descriptors:
  - {key: client, rate_limit: {algorithm: concurrency, requests_per_unit: 10000, lease: 1h}}
  - {key: queue, rate_limit: {algorithm: leaky_queue, requests_per_unit: 1, unit: hour, burst: 100}}
  - {key: ban, rate_limit: {requests_per_unit: 0, unit: year}}
  - {key: tried, shadow_mode: true, rate_limit: {algorithm: concurrency, requests_per_unit: 10, lease: 1h}}
`

// inFlightOf asks about a client, and about others.
func inFlightOf(keys ...string) *pb.RateLimitRequest {
	req := &pb.RateLimitRequest{Domain: "shop"}
	for _, key := range keys {
		req.Descriptors = append(req.Descriptors, &commonpb.RateLimitDescriptor{
			Entries: []*commonpb.RateLimitDescriptor_Entry{{Key: key, Value: "a"}},
		})
	}
	return req
}

// inUse returns the number of in-flight requests of a limit.
func (p *process) inUse(key string, limit int) (int, error) {
	look := inFlightOf(key)
	look.Descriptors[0].HitsAddend = wrapperspb.UInt64(0)
	res, err := p.client.ShouldRateLimit(p.t.Context(), look)
	if err != nil {
		return 0, err
	}
	return limit - int(res.GetStatuses()[0].GetLimitRemaining()), nil
}

// usesPlaces fails the test unless so many places are soon taken.
func (p *process) usesPlaces(key string, limit, want int) {
	p.t.Helper()
	redistest.Await(p.t, func() error {
		got, err := p.inUse(key, limit)
		if err == nil && got != want {
			err = fmt.Errorf("%d places of %s are taken, want %d", got, key, want)
		}
		return err
	})
}

// Requests that are cancelled, or whose deadline ends, while Redis hangs, do not count as in flight once Redis
// responds, and hold no goroutine before. Requests that others hold are not released.
func TestPlacesOfRequestsThatGo(t *testing.T) {
	const limit, others = 10000, 3
	server := redistest.Start(t)
	o := options(t, inFlight)
	o.Store, o.MaxStreams = server.URL(), 5000
	p := start(t, o)
	for range others {
		if res, err := p.client.ShouldRateLimit(t.Context(), inFlightOf("client")); err != nil {
			t.Fatal(err)
		} else if leased := res.GetDynamicMetadata().GetFields()["leased"].GetNumberValue(); leased != 1 {
			t.Fatalf("an admitted request leased %v, want 1", leased)
		}
	}
	before := runtime.NumGoroutine()
	server.Pause()
	canceled, cancel := context.WithCancel(t.Context())
	defer cancel()
	late, end := context.WithTimeout(t.Context(), 3*time.Second)
	defer end()
	var wait sync.WaitGroup
	for i := range 400 {
		ctx := canceled
		if i%2 == 1 {
			ctx = late
		}
		wait.Go(func() {
			_, err := p.client.ShouldRateLimit(ctx, inFlightOf("client"))
			switch c := status.Code(err); {
			case c == codes.Canceled, c == codes.DeadlineExceeded:
			case c == codes.OK && i%2 == 1: // its failure policy may decide, just before it ends
			default:
				t.Errorf("a request that goes: %v", err)
			}
		})
	}
	redistest.Await(t, func() error {
		if n := runtime.NumGoroutine() - before; n < 350 { // callers and handlers; those with a deadline may have ended
			return fmt.Errorf("%d goroutines more: not all requests are under way", n)
		}
		return nil
	})
	cancel()
	wait.Wait()
	redistest.Await(t, func() error {
		if n := runtime.NumGoroutine() - before; n > 50 {
			return fmt.Errorf("400 requests have gone, and %d goroutines more than before are left", n)
		}
		return nil
	})
	server.Resume()
	p.usesPlaces("client", limit, others)
}
