//go:build e2e

package e2e

import (
	"strings"
	"syscall"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// A process is stopped while requests wait for a Redis that does not answer, for longer than the drain delay. It
// says at once that it stops, and ends only when each of them has the answer of its rule's on_store_failure.
func TestStopWhileRedisHangs(t *testing.T) {
	t.Parallel()
	const storeTimeout, drainDelay = 5 * time.Second, 3 * time.Second
	redis := redistest.Start(t)
	s := startWeir(t, ruleFile(t, `
domain: shop
descriptors:
  - {key: open, rate_limit: {requests_per_unit: 0, unit: hour, on_store_failure: allow}}
  - {key: closed, rate_limit: {requests_per_unit: 1000, unit: hour, on_store_failure: deny}}
`), "--store", redis.URL(), "--store-timeout", storeTimeout.String(), "--drain-delay", drainDelay.String())
	conn := dial(t, s.GRPC)
	watch, err := grpc_health_v1.NewHealthClient(conn).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	hears := func(want grpc_health_v1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		if resp, err := watch.Recv(); err != nil || resp.GetStatus() != want {
			t.Fatalf("the health watch says %v, %v; want %s", resp, err, want)
		}
	}
	hears(grpc_health_v1.HealthCheckResponse_SERVING)

	redis.Pause()
	began := time.Now()
	var open, closed []grpc.ClientStream
	for range 20 {
		open, closed = append(open, begin(t, conn, "open")), append(closed, begin(t, conn, "closed"))
	}
	stopped := time.Now()
	s.Signal(syscall.SIGTERM)
	hears(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	heard := time.Since(stopped)
	if heard > drainDelay*2/3 || time.Since(began) > storeTimeout {
		t.Errorf("the health watch heard of the stop after %s, want at once", heard)
	}
	if got, want := s.readiness(t), "503 Service Unavailable\nnot ready\nprocess: stopping\n"; !strings.HasPrefix(got,
		want) {
		t.Errorf("/readyz answers %q, want %q", got, want)
	}
	finish(t, open, pb.RateLimitResponse_OK)
	finish(t, closed, pb.RateLimitResponse_OVER_LIMIT)
	answered := time.Since(began)
	if answered < storeTimeout {
		t.Errorf("all was answered in %s: nothing waited for Redis, so this test shows nothing", answered)
	}
	if code := s.Wait(30 * time.Second); code != 0 || !strings.Contains(s.Output(), "msg=stopped all_answered=true") {
		t.Errorf("Weir ended with exit code %d, want 0 and all answered", code)
	}
	t.Logf("the health watch heard after %s, the last answer came %s after its request, the end %s after SIGTERM",
		heard, answered, time.Since(stopped))
}

// begin sends a request without waiting for its answer.
func begin(t *testing.T, conn *grpc.ClientConn, key string) grpc.ClientStream {
	t.Helper()
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{}, pb.RateLimitService_ShouldRateLimit_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(question(key, "x")); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	return stream
}

// finish waits for the answers of requests that were begun.
func finish(t *testing.T, streams []grpc.ClientStream, want pb.RateLimitResponse_Code) {
	t.Helper()
	for _, stream := range streams {
		var resp pb.RateLimitResponse
		if err := stream.RecvMsg(&resp); err != nil || resp.GetOverallCode() != want {
			t.Errorf("a request in flight was answered %s, %v; want %s", resp.GetOverallCode(), err, want)
		}
	}
}

// readiness is the status and the text of /readyz.
func (s *weir) readiness(t *testing.T) string {
	t.Helper()
	status, text := s.Page("/readyz")
	return status + "\n" + text
}
