package main

import (
	"context"
	"io"
	"net"
	"os"
	"strings"
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
