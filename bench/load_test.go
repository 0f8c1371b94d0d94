package main

import (
	"context"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
)

// serve starts a RateLimitService in this process and returns its address.
func serve(t *testing.T, s pb.RateLimitServiceServer) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pb.RegisterRateLimitServiceServer(server, s)
	go server.Serve(l) //nolint:errcheck // ends with Stop
	t.Cleanup(server.Stop)
	return l.Addr().String()
}

// quick is a bench of short rounds against targets at an address.
func quick(t *testing.T, workloads string, targets ...*target) *bench {
	t.Helper()
	fewKeys(t)
	o := &options{workloads: workloads, settings: settings{
		Rounds: 2, Duration: 100 * time.Millisecond, WarmUp: 10 * time.Millisecond, Concurrency: 8, Connections: 2,
	}}
	b, err := newBench(o, targets, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func newTarget(name, addr string, alwaysOK bool) *target {
	return &target{name: name, addr: addr, pid: os.Getpid(), alwaysOK: alwaysOK, primed: map[string]bool{}}
}

// limits is a service as Weir is one, that denies a request whose key it has seen in W2 and W4's tight rules.
type limits struct {
	pb.UnimplementedRateLimitServiceServer

	deny     func(req *pb.RateLimitRequest) bool
	statuses bool
}

func (l *limits) ShouldRateLimit(_ context.Context, req *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	res := &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OK}
	if l.deny(req) {
		res.OverallCode = pb.RateLimitResponse_OVER_LIMIT
	}
	for range req.GetDescriptors() {
		s := &pb.RateLimitResponse_DescriptorStatus{}
		if l.statuses {
			s.CurrentLimit = &pb.RateLimitResponse_RateLimit{RequestsPerUnit: 1}
		}
		res.Statuses = append(res.Statuses, s)
	}
	return res, nil
}

// TestWrongAnswersFail has services that do not do what the workload's rules say.
func TestWrongAnswersFail(t *testing.T) {
	all := func(*pb.RateLimitRequest) bool { return true }
	none := func(*pb.RateLimitRequest) bool { return false }
	for _, c := range []struct {
		workload string
		service  *limits
		want     string // empty: right answers
	}{
		{"w1", &limits{deny: none, statuses: true}, ""},
		{"w1", &limits{deny: none}, "has no limit"},
		{"w1", &limits{deny: all, statuses: true}, "100.000 % of "},
		{"w2", &limits{deny: all, statuses: true}, ""},
		{"w2", &limits{deny: none, statuses: true}, "0.000 % of "},
		{"w3", &limits{deny: none, statuses: true}, ""},
		{"w3", &limits{deny: all, statuses: true}, "100.000 % of "},
	} {
		err := quick(t, c.workload, newTarget("peer", serve(t, c.service), false)).run(t.Context())
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error %v, want %q", c.workload, err, c.want)
		}
	}
}

func TestFailedRequestsFail(t *testing.T) {
	addr := serve(t, pb.UnimplementedRateLimitServiceServer{})
	for _, workloads := range []string{"w1", "w1c1"} {
		err := quick(t, workloads, newTarget("broken", addr, true)).run(t.Context())
		if err == nil || !strings.Contains(err.Error(), "requests failed, the first with: rpc error: code = Unimplemented") {
			t.Errorf("%s: error %v, want that of the requests", workloads, err)
		}
	}
}

// stalling answers nothing for a while, once.
type stalling struct {
	noop

	requests atomic.Int64
	stalled  chan struct{}
}

func (s *stalling) ShouldRateLimit(ctx context.Context, req *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	if s.requests.Add(1) == 100 {
		time.AfterFunc(400*time.Millisecond, func() { close(s.stalled) })
	}
	if s.requests.Load() >= 100 {
		<-s.stalled
	}
	return s.noop.ShouldRateLimit(ctx, req)
}

// TestOpenLoopShowsAStall has a server that stands still for 0.4 of 1 second. Every request that was due meanwhile
// had to wait: an open loop shows that at the quantile 0.8, and a closed loop, which asked once in the time, does
// not.
func TestOpenLoopShowsAStall(t *testing.T) {
	w := &workloads[0]
	r, err := w.encode()
	if err != nil {
		t.Fatal(err)
	}
	run := func(drive func(l *load) *tally) time.Duration {
		t.Helper()
		l, err := dial(serve(t, &stalling{stalled: make(chan struct{})}), w, r, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer l.close()
		got := drive(l)
		if err := got.failed(); err != nil {
			t.Fatal(err)
		}
		return got.latency.quantile(0.8)
	}
	for _, atMost := range []int{4, openWorkers} {
		open := run(func(l *load) *tally { return l.open(t.Context(), time.Second, 1000, atMost) })
		if open < 100*time.Millisecond {
			t.Errorf("open loop of at most %d: quantile 0.8 is %v, want about 200ms", atMost, open)
		}
	}
	closed := run(func(l *load) *tally { return l.closed(t.Context(), time.Second, 1) })
	if closed > 100*time.Millisecond {
		t.Errorf("closed loop: quantile 0.8 is %v; the stall was to be hidden", closed)
	}
}
