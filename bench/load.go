package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
)

// patienceOfCaller is the timeout of one request, far above any response time.
const patienceOfCaller = 5 * time.Second

// latencies are the latencies of all requests.
type latencies []time.Duration

// quantile returns the smallest of the sorted latencies that a share q of them does not exceed, or 0 without any.
func (l latencies) quantile(q float64) time.Duration {
	if len(l) == 0 {
		return 0
	}
	return l[max(0, int(math.Ceil(q*float64(len(l))))-1)]
}

// tally counts the results of requests.
type tally struct {
	latency  latencies
	ok, over uint64
	wrong    uint64 // any other code
	errors   uint64
	firstErr error
}

func (t *tally) merge(o *tally) {
	t.latency = append(t.latency, o.latency...)
	t.ok += o.ok
	t.over += o.over
	t.wrong += o.wrong
	t.errors += o.errors
	t.firstErr = cmp.Or(t.firstErr, o.firstErr)
}

// answered returns the number of requests with a response.
func (t *tally) answered() uint64 { return t.ok + t.over + t.wrong }

// failed returns an error if requests failed or had an unknown code.
func (t *tally) failed() error {
	if t.errors > 0 {
		return fmt.Errorf("%d requests failed, the first with: %w", t.errors, t.firstErr)
	}
	if t.wrong > 0 {
		return fmt.Errorf("%d answers are neither OK nor OVER_LIMIT", t.wrong)
	}
	if t.answered() == 0 {
		return errors.New("no request was answered")
	}
	return nil
}

// load sends requests to one server.
type load struct {
	w        *workload
	requests *requests
	conns    []*grpc.ClientConn
}

// dial creates connections, which connect with their first request.
func dial(addr string, w *workload, r *requests, conns int) (*load, error) {
	l := &load{w: w, requests: r}
	for range conns {
		conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{})))
		if err != nil {
			l.close()
			return nil, err
		}
		l.conns = append(l.conns, conn)
	}
	return l, nil
}

func (l *load) close() {
	for _, c := range l.conns {
		_ = c.Close() // no request is in flight
	}
}

// ask sends the request of key k and records its latency.
func (l *load) ask(ctx context.Context, conn *grpc.ClientConn, k int, t *tally) {
	since := time.Now()
	ctx, cancel := context.WithTimeout(ctx, patienceOfCaller)
	defer cancel()
	var answer code
	err := conn.Invoke(ctx, pb.RateLimitService_ShouldRateLimit_FullMethodName, l.requests.at(k), &answer)
	if err != nil {
		t.errors++
		t.firstErr = cmp.Or(t.firstErr, err)
		return
	}
	t.latency = append(t.latency, time.Since(since))
	switch answer {
	case pb.RateLimitResponse_OK:
		t.ok++
	case pb.RateLimitResponse_OVER_LIMIT:
		t.over++
	default:
		t.wrong++
	}
}

// inParallel runs n concurrent calls of work, each with a number and its own tally.
func inParallel(n int, work func(i int, t *tally)) *tally {
	tallies := make([]tally, n)
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() { work(i, &tallies[i]) })
	}
	running.Wait()
	all := &tally{}
	for i := range tallies {
		all.merge(&tallies[i])
	}
	slices.Sort(all.latency)
	return all
}

// conn returns the connection of worker i.
func (l *load) conn(i int) *grpc.ClientConn { return l.conns[i%len(l.conns)] }

// each sends the request of each key once, atOnce at a time.
func (l *load) each(ctx context.Context, keys []int, atOnce int) *tally {
	return inParallel(atOnce, func(i int, t *tally) {
		conn := l.conn(i)
		for ; i < len(keys); i += atOnce {
			l.ask(ctx, conn, keys[i], t)
		}
	})
}

// closed keeps atOnce requests outstanding for a time, and sends at least as many.
func (l *load) closed(ctx context.Context, d time.Duration, atOnce int) *tally {
	end := time.Now().Add(d)
	return inParallel(atOnce, func(i int, t *tally) {
		conn := l.conn(i)
		next := l.w.picker(uint64(i)) //nolint:gosec // not negative
		for more := true; more; more = t.errors == 0 && time.Now().Before(end) {
			l.ask(ctx, conn, next(), t)
		}
	})
}

// probe sends the request of key k and checks the whole response: a status for every descriptor, with its rule's limit.
// Later, only the overall code is checked, which would also be OK if no rule matched.
func probe(ctx context.Context, addr string, w *workload, k int) error {
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // no request is in flight
	ctx, cancel := context.WithTimeout(ctx, patienceOfCaller)
	defer cancel()
	res, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, w.request(k))
	if err != nil {
		return err
	}
	if len(res.GetStatuses()) != w.descriptors {
		return fmt.Errorf("answered %d statuses for %d descriptors: %s", len(res.GetStatuses()), w.descriptors, text(res))
	}
	for _, s := range res.GetStatuses() {
		if s.GetCurrentLimit() == nil {
			return fmt.Errorf("a descriptor of %s has no limit: %s", text(w.request(k)), text(res))
		}
	}
	return nil
}

func text(m proto.Message) string { return fmt.Sprintf("{%v}", m) }
