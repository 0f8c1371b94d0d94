package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// asked is the result of a Take.
type asked struct {
	out []limiter.Decision
	err error
}

// ask starts a Take of the hits, and sends the result on the channel.
func ask(ctx context.Context, s limiter.Store, hits ...limiter.Hit) <-chan asked {
	answer := make(chan asked, 1)
	go func() {
		out := make([]limiter.Decision, len(hits))
		err := s.Take(ctx, hits, out)
		answer <- asked{out, err}
	}()
	return answer
}

// held pauses the server and starts calls, so many that later calls must wait. These calls have their own counters.
// resume resumes the server.
func held(t *testing.T, server *redistest.Server, s *redisstore.Store) (resume func()) {
	t.Helper()
	p := funnel(t, 1000, time.Hour)
	take(t, s, "warm", p, 1)          // connects, and loads the script
	redistest.Await(t, func() error { // its call is answered before it has ended
		if workers, _ := s.Queued(); workers != 0 {
			return fmt.Errorf("%d calls under way", workers)
		}
		return nil
	})
	server.Pause()
	var answers []<-chan asked
	for i := range redisstore.MaxWorkers {
		answers = append(answers, ask(t.Context(), s, limiter.Hit{Key: fmt.Sprint("worker", i), Policy: p, N: 1}))
		redistest.Await(t, func() error {
			if workers, waiting := s.Queued(); workers != i+1 || waiting != 0 {
				return fmt.Errorf("%d calls under way and %d requests waiting", workers, waiting)
			}
			return nil
		})
	}
	return func() {
		server.Resume()
		for _, answer := range answers {
			if a := <-answer; a.err != nil {
				t.Error(a.err)
			}
		}
	}
}

// waiting waits until n requests wait for the next call.
func waiting(t *testing.T, s *redisstore.Store, n int) {
	t.Helper()
	redistest.Await(t, func() error {
		if _, got := s.Queued(); got != n {
			return fmt.Errorf("%d requests wait, want %d", got, n)
		}
		return nil
	})
}

func TestRequestsShareTheNextCall(t *testing.T) {
	server := redistest.Start(t)
	s, c := open(t, server.URL(), redisstore.Options{}), client(t, server)
	p := funnel(t, 30, time.Hour)
	resume := held(t, server, s)
	var answers []<-chan asked
	for i := range 40 {
		answers = append(answers, ask(t.Context(), s, limiter.Hit{Key: "k", Policy: p, N: 1}))
		waiting(t, s, i+1)
	}
	resume()
	admitted := 0
	for i, answer := range answers {
		a := <-answer
		if a.err != nil {
			t.Fatal(a.err)
		}
		if a.out[0].Allowed {
			admitted++
		}
		if want := int64(max(0, 29-i)); a.out[0].Remaining != want {
			t.Errorf("request %d has %d remaining, want %d: they are decided in the order of their coming", i,
				a.out[0].Remaining, want)
		}
	}
	if admitted != 30 {
		t.Errorf("%d of 40 requests admitted, want 30", admitted)
	}
	// One asks for the script and one loads it, MaxWorkers were under way, and one takes the 40.
	if got, most := calls(t, c), redisstore.MaxWorkers+3; got > most {
		t.Errorf("%d script calls, want at most %d", got, most)
	}
}

func TestCallIsBounded(t *testing.T) {
	server := redistest.Start(t)
	s, c := open(t, server.URL(), redisstore.Options{}), client(t, server)
	resume := held(t, server, s)
	before := redisstore.MaxWorkers + 2 // script calls
	hits := make([]limiter.Hit, 100)
	for i := range hits {
		hits[i] = limiter.Hit{Key: strconv.Itoa(i), Policy: funnel(t, 1000, time.Hour), N: 1}
	}
	var answers []<-chan asked
	for i := range 5 {
		answers = append(answers, ask(t.Context(), s, hits...))
		waiting(t, s, i+1)
	}
	resume()
	for _, answer := range answers {
		if a := <-answer; a.err != nil {
			t.Error(a.err)
		}
	}
	if got := calls(t, c) - before; got != 3 {
		t.Errorf("five requests of 100 hits went out in %d calls, want 3: two requests are all that 256 hits have room for",
			got)
	}
}

func TestAbandonedRequestIsNotCharged(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server.URL(), redisstore.Options{})
	p := funnel(t, 10, time.Hour)
	resume := held(t, server, s)
	ctx, cancel := context.WithCancel(t.Context())
	answer := ask(ctx, s, limiter.Hit{Key: "k", Policy: p, N: 1})
	waiting(t, s, 1)
	patientAnswer := ask(t.Context(), s, limiter.Hit{Key: "k", Policy: p, N: 2})
	waiting(t, s, 2)
	cancel()
	if a := <-answer; !errors.Is(a.err, context.Canceled) || !errors.Is(a.err, limiter.ErrUnavailable) {
		t.Errorf("a cancelled request in the queue: %v, want context.Canceled", a.err)
	}
	resume()
	if a := <-patientAnswer; a.err != nil || a.out[0].Remaining != 8 {
		t.Errorf("beside a cancelled request: %+v, want 8 remaining", a)
	}
}

// A request that is cancelled while its call is in flight returns at once, even if it could have lent its goroutine to
// the call. The server does not reply during this test.
func TestCancelledRequestReturns(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server.URL(), redisstore.Options{Timeout: time.Hour})
	p := funnel(t, 10, time.Hour)
	for range 100 { // so that the store knows that calls are quick
		take(t, s, "warm", p, 0)
	}
	server.Pause()
	defer server.Resume()
	for range 2 * redisstore.MaxWorkers { // the later ones wait in the queue
		ctx, cancel := context.WithCancel(t.Context())
		answer := ask(ctx, s, limiter.Hit{Key: "k", Policy: p, N: 1})
		redistest.Await(t, func() error {
			if workers, waiting := s.Queued(); workers+waiting == 0 {
				return errors.New("the request is not on its way")
			}
			return nil
		})
		cancel()
		select {
		case a := <-answer:
			if !errors.Is(a.err, context.Canceled) || !errors.Is(a.err, limiter.ErrUnavailable) {
				t.Errorf("a cancelled request: %v, want context.Canceled", a.err)
			}
		case <-time.After(proctest.Patience):
			t.Fatal("a cancelled request does not return while Redis hangs")
		}
	}
}

// A request lends its goroutine only if the timeout is short and the last call was quick. So with the default timeout,
// a cancelled request returns late by at most that timeout.
func TestLending(t *testing.T) {
	server := redistest.Start(t)
	short := open(t, server.URL(), redisstore.Options{Timeout: redisstore.DefaultTimeout})
	long := open(t, server.URL(), redisstore.Options{Timeout: time.Second})
	p := funnel(t, 10, time.Hour)
	hit, out := []limiter.Hit{{Key: "k", Policy: p, Peek: true}}, make([]limiter.Decision, 1)
	if short.CanLend() {
		t.Error("a request lends its goroutine to a call of a server that is not known to be quick")
	}
	redistest.Await(t, func() error {
		err := errors.Join(short.Take(t.Context(), hit, out), long.Take(t.Context(), hit, out))
		if err == nil && !short.CanLend() {
			err = errors.New("no request lends its goroutine, though calls are quick")
		}
		return err
	})
	server.Pause()
	_ = short.Take(t.Context(), hit, out)
	if short.CanLend() || long.CanLend() {
		t.Errorf("requests lend their goroutines: %t after a slow call, %t with a long timeout; want neither",
			short.CanLend(), long.CanLend())
	}
	server.Resume()
}

func TestRequestLargerThanABatch(t *testing.T) {
	s := open(t, redistest.Start(t).URL(), redisstore.Options{})
	p := funnel(t, 10, time.Hour)
	hits := make([]limiter.Hit, 5000)
	for i := range hits {
		hits[i] = limiter.Hit{Key: strconv.Itoa(i), Policy: p, N: 3}
	}
	out := make([]limiter.Decision, len(hits))
	if err := s.Take(t.Context(), hits, out); err != nil {
		t.Fatal(err)
	}
	for i, d := range out {
		if !d.Allowed || d.Remaining != 7 {
			t.Fatalf("hit %d: %+v", i, d)
		}
	}
}

// TestHastyAndPatientRequests lets requests give up at any moment. Redis must have charged all admitted requests, and
// in addition at most the requests that gave up.
func TestHastyAndPatientRequests(t *testing.T) {
	s := open(t, redistest.Start(t).SocketURL(), redisstore.Options{})
	const limit = 5000
	p := funnel(t, limit, 365*24*time.Hour)
	var admitted, unknown atomic.Int64
	var wg sync.WaitGroup
	for g := range 64 {
		wg.Go(func() {
			hits, out := []limiter.Hit{{Key: "k", Policy: p, N: 1}}, make([]limiter.Decision, 1)
			for i := range 100 {
				ctx, cancel := t.Context(), context.CancelFunc(func() {})
				if (i+g)%3 == 0 {
					ctx, cancel = context.WithTimeout(t.Context(), time.Duration(i*20)*time.Microsecond)
				}
				err := s.Take(ctx, hits, out)
				hits[0] = limiter.Hit{Key: "k", Policy: p, N: 1} // the caller's own again, whatever became of the call
				cancel()
				switch {
				case err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, limiter.ErrLate):
					t.Error(err)
				case err != nil:
					unknown.Add(1)
				case out[0].Allowed:
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	left := take(t, s, "k", p, 0).Remaining
	charged := limit - left
	if a, u := admitted.Load(), unknown.Load(); charged < a || charged > a+u {
		t.Errorf("%d hits charged, but %d admitted and %d given up", charged, a, u)
	}
	redistest.Await(t, func() error {
		if workers, waiting := s.Queued(); workers+waiting != 0 {
			return fmt.Errorf("%d calls under way and %d requests waiting", workers, waiting)
		}
		return nil
	})
}
