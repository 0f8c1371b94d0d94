package guard_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// far is a store on a network: it counts calls, and has a latency before it decides and after.
type far struct {
	calls atomic.Int64

	mu sync.Mutex
	network

	deciding sync.Mutex // held while the store decides and see is called
}

type network struct {
	limiter.Store
	delay time.Duration // until the store decides
	late  time.Duration // of its response
	// see is called for each call as it is decided; may be nil
	see func(hits []limiter.Hit, out []limiter.Decision)
}

// set changes latency and failure of the network.
func (f *far) set(change func(n *network)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.network)
}

// between calls do while no call is being decided, so that do may change see.
func (f *far) between(do func()) {
	f.deciding.Lock()
	defer f.deciding.Unlock()
	do()
}

func (f *far) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	f.calls.Add(1)
	f.mu.Lock()
	n := f.network
	f.mu.Unlock()
	if n.delay > 0 {
		select {
		case <-time.After(n.delay):
		case <-ctx.Done():
			return errors.Join(limiter.ErrUnavailable, ctx.Err())
		}
	}
	var err error
	if n.see == nil {
		err = n.Take(ctx, hits, out)
	} else {
		f.between(func() {
			err = n.Take(ctx, hits, out)
			n.see(hits, out)
		})
	}
	time.Sleep(n.late)
	return err
}

func newFar(t *testing.T) *far {
	t.Helper()
	s, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &far{network: network{Store: s}}
}

func newLeases(t *testing.T, store limiter.Store) guard.LeasesStore {
	t.Helper()
	l := guard.Lease(store)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// leaseFor is the lease time of most tests.
const leaseFor = 50 * time.Millisecond

// leaseRoute is the route of a limit with this lease time.
type leaseRoute time.Duration

func (r leaseRoute) LeaseTime() time.Duration { return time.Duration(r) }

// onLease is the route of most tests.
var onLease any = leaseRoute(leaseFor)

// leased is a policy whose permits can be leased.
func leased(tb testing.TB, in limiter.Params) *limiter.Policy {
	tb.Helper()
	in.ChargeDenied = limiter.ChargeNone
	in.DenyAll = in.Limit == 0 // a test means it
	p, err := limiter.NewPolicy(in)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// hourly is a leased limit whose count says exactly how many were charged and not released.
func hourly(tb testing.TB, limit int64) *limiter.Policy {
	tb.Helper()
	return leased(tb, limiter.Params{
		Algorithm: limiter.SlidingLog, Limit: limit, Window: time.Hour,
		MaxLogEntries: 1_000_000,
	})
}

// take decides a request and fails the test on an error.
func take(tb testing.TB, s limiter.Store, hits ...limiter.Hit) []limiter.Decision {
	tb.Helper()
	out := make([]limiter.Decision, len(hits))
	if err := s.Take(context.Background(), hits, out); err != nil {
		tb.Fatal(err)
	}
	return out
}

// heat decides the same request n times. Before each, it waits for the background work of the last.
func heat(tb testing.TB, s limiter.Store, n int, hits ...limiter.Hit) {
	tb.Helper()
	for range n {
		take(tb, s, hits...)
		synctest.Wait()
	}
}

// settled returns the stats once the background work is done. Work that is due at the time of the test's next step may
// run before or after this step.
func settled(l guard.LeasesStore) guard.LeaseStats {
	synctest.Wait()
	return l.Stats()
}

// charged returns the number of hits that the store has counted for a key.
func charged(tb testing.TB, f *far, key string, p *limiter.Policy) int64 {
	tb.Helper()
	return p.Limit() - take(tb, f.Store, limiter.Hit{Key: key, Policy: p, Route: onLease, Peek: true})[0].Remaining
}
