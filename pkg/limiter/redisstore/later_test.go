package redisstore_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// waiter is a limiter.Waiter that a test waits for.
type waiter struct {
	gone   atomic.Bool
	panics bool
	taken  chan error
	batch  chan struct{}
}

func newWaiter() *waiter { return &waiter{taken: make(chan error, 1), batch: make(chan struct{})} }

func (w *waiter) Taken(err error) {
	w.taken <- err
	if w.panics {
		panic("a waiter panics")
	}
}
func (w *waiter) BatchTaken()  { close(w.batch) }
func (w *waiter) IsGone() bool { return w.gone.Load() }

// takeLater decides hits by TakeLater and Send.
func takeLater(t *testing.T, s limiter.Later, hits ...limiter.Hit) ([]limiter.Decision, error) {
	t.Helper()
	w, out := newWaiter(), make([]limiter.Decision, len(hits))
	if !s.TakeLater(hits, out, w) {
		t.Fatalf("%+v cannot be decided later", hits)
	}
	s.Send()
	err := <-w.taken
	<-w.batch
	return out, err
}

// TakeLater decides as Take does, request by request, also where several hits count together or by themselves.
func TestTakeLaterAnswersAsTake(t *testing.T) {
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
				got, err := takeLater(t, s, request("later")...)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("by itself %t, mode %v, round %d (-Take +TakeLater):\n%s", byItself, mode, round, diff)
				}
			}
		}
	}
}

// What comes before one Send shares a script call, and counts are exact.
func TestSendSharesACall(t *testing.T) {
	s := open(t, redistest.Start(t).URL(), redisstore.Options{Timeout: 5 * time.Second})
	p := funnel(t, 20, time.Hour)
	take(t, s, "warm", p, 1)
	calls := func() (n uint64) {
		for _, calls := range s.Stats().Batches {
			n += calls
		}
		return n
	}
	before := calls()
	const requests = 50
	waiters, outs := make([]*waiter, requests), make([][]limiter.Decision, requests)
	for i := range requests {
		waiters[i], outs[i] = newWaiter(), make([]limiter.Decision, 1)
		if !s.TakeLater([]limiter.Hit{{Key: "k", Policy: p, N: 1}}, outs[i], waiters[i]) {
			t.Fatal("cannot be decided later")
		}
	}
	if calls() != before {
		t.Error("sent before Send")
	}
	s.Send()
	admitted := 0
	for i, w := range waiters {
		if err := <-w.taken; err != nil {
			t.Fatal(err)
		}
		if outs[i][0].Allowed {
			admitted++
		}
	}
	if got := calls() - before; got != 1 || admitted != 20 {
		t.Errorf("%d script calls admitted %d, want 1 and 20", got, admitted)
	}
	s.Send() // nothing waits
}

// Many goroutines that take now and later admit exactly the limit, and each waiter hears once of both ends.
func TestTakeLaterIsExact(t *testing.T) {
	s := open(t, redistest.Start(t).URL(), redisstore.Options{Timeout: 5 * time.Second})
	p := policy(t, limiter.Params{Algorithm: limiter.FixedWindow, Limit: 200, Window: 24 * time.Hour})
	var admitted atomic.Int64
	var wait sync.WaitGroup
	for g := range 16 {
		wait.Go(func() {
			for range 50 {
				hits := []limiter.Hit{{Key: "k", Policy: p, N: 1}}
				out := make([]limiter.Decision, 1)
				if g%2 == 0 {
					if err := s.Take(t.Context(), hits, out); err != nil {
						t.Error(err)
					}
				} else {
					w := newWaiter()
					s.TakeLater(hits, out, w)
					s.Send()
					if err := <-w.taken; err != nil {
						t.Error(err)
					}
					<-w.batch
				}
				if out[0].Allowed {
					admitted.Add(1)
				}
			}
		})
	}
	wait.Wait()
	if admitted.Load() != 200 {
		t.Errorf("%d admitted, want 200", admitted.Load())
	}
}

// A server that is gone, requests that are wrong, and what the script refuses.
func TestTakeLaterFails(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server.URL(), redisstore.Options{Timeout: time.Second})
	p := funnel(t, 1, time.Hour)
	take(t, s, "warm", p, 1)
	if s.TakeLater(nil, nil, newWaiter()) || s.TakeLater([]limiter.Hit{{Key: "k", N: 1}}, make([]limiter.Decision, 1), newWaiter()) {
		t.Error("takes a request that Take refuses")
	}
	server.Kill()
	if _, err := takeLater(t, s, limiter.Hit{Key: "k", Policy: p, N: 1}); !errors.Is(err, limiter.ErrUnavailable) {
		t.Errorf("without Redis: %v, want it to wrap ErrUnavailable", err)
	}
}

// A waiter that panics keeps the answer from no other.
func TestWaiterThatPanics(t *testing.T) {
	caught := make(chan any, 1)
	t.Cleanup(panics.Handle(func(_ string, value any, _ []byte) { caught <- value }))
	s := open(t, redistest.Start(t).URL(), redisstore.Options{Timeout: 5 * time.Second})
	p := funnel(t, 100, time.Hour)
	var all []*waiter
	for i := range 3 {
		w := newWaiter()
		w.panics = i == 0
		all = append(all, w)
		s.TakeLater([]limiter.Hit{{Key: "k", Policy: p, N: 1}}, make([]limiter.Decision, 1), w)
	}
	s.Send()
	for _, w := range all {
		if err := <-w.taken; err != nil {
			t.Error(err)
		}
		<-w.batch
	}
	if why := <-caught; why != "a waiter panics" {
		t.Errorf("caught %v", why)
	}
}
