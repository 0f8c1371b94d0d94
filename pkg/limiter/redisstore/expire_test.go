package redisstore

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// silentStore returns a store on a server that reads but never replies, in a bubble of virtual time.
func silentStore(t *testing.T, timeout time.Duration, untilDeadline bool) *Store {
	t.Helper()
	client := redis.NewClient(&redis.Options{
		Addr:                  "192.0.2.1:6379", // which nobody looks up
		ContextTimeoutEnabled: true, Protocol: 2, DisableIdentity: true, MaxRetries: -1, DialerRetries: 1,
		ReadTimeout: time.Hour, WriteTimeout: time.Hour, PoolTimeout: time.Hour,
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, there) }()
			return here, nil
		},
	})
	s, err := New(client, Options{Timeout: timeout, UntilDeadline: untilDeadline})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return s
}

// A request to a server that does not reply returns at its own deadline, at the store's timeout, or soon after it is
// cancelled, whatever the times of other requests. It leaves no state behind.
func TestRequestsAreGivenUp(t *testing.T) {
	type request struct {
		deadline, cancel time.Duration // of its context; 0: none
		want             time.Duration // at the latest
		why              error
	}
	for name, tt := range map[string]struct {
		untilDeadline bool
		requests      []request
	}{
		"timeout": {requests: []request{{0, 0, time.Second, context.DeadlineExceeded}}},
		"a deadline before the timeout": {requests: []request{
			{0, 0, time.Second, context.DeadlineExceeded},
			{3 * time.Millisecond, 0, 3 * time.Millisecond, context.DeadlineExceeded},
			{2 * time.Second, 0, time.Second, context.DeadlineExceeded},
		}},
		"until nine tenths of the deadline": {untilDeadline: true, requests: []request{
			{100 * time.Millisecond, 0, 90 * time.Millisecond, context.DeadlineExceeded},
			{10 * time.Millisecond, 0, 9 * time.Millisecond, context.DeadlineExceeded},
		}},
		"cancelled": {requests: []request{
			{0, 30 * time.Millisecond, 30*time.Millisecond + noticeCancel, context.Canceled},
			{0, 50 * time.Millisecond, 50*time.Millisecond + noticeCancel, context.Canceled},
			{0, 0, time.Second, context.DeadlineExceeded},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := silentStore(t, time.Second, tt.untilDeadline)
				p := differentPolicies(t, 1)[0]
				// The first ones occupy all workers, the others wait in the queue.
				for range maxWorkers {
					go func() {
						_ = s.Take(t.Context(), []limiter.Hit{{Key: "k", Policy: p, N: 1}}, make([]limiter.Decision, 1))
					}()
					synctest.Wait()
				}
				for i, r := range tt.requests {
					go func() {
						ctx, cancel := context.WithCancel(t.Context())
						defer cancel()
						if r.deadline > 0 {
							ctx, cancel = context.WithTimeout(ctx, r.deadline)
							defer cancel()
						}
						if r.cancel > 0 {
							time.AfterFunc(r.cancel, cancel)
						}
						begin := time.Now()
						err := s.Take(ctx, []limiter.Hit{{Key: "k", Policy: p, N: 1}}, make([]limiter.Decision, 1))
						if took := time.Since(begin); took > r.want+lateBy || took < r.want-noticeCancel {
							t.Errorf("request %d returned after %s, want %s", i, took, r.want)
						}
						if !errors.Is(err, r.why) || !errors.Is(err, limiter.ErrUnavailable) {
							t.Errorf("request %d: %v, want %v", i, err, r.why)
						}
					}()
					synctest.Wait()
				}
				time.Sleep(10 * time.Second)
				synctest.Wait()
				if s.queue.workers+len(s.queue.waiting)+len(s.queue.busy) != 0 || s.queue.alarmSet {
					t.Errorf("%d workers, %d of them with a batch, %d requests waiting, alarm set %t; want nothing left",
						s.queue.workers, len(s.queue.busy), len(s.queue.waiting), s.queue.alarmSet)
				}
			})
		})
	}
}

// Of the requests in flight to a server that hangs, at most maxDetached wait for its late reply.
func TestDetachedWorkersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := silentStore(t, 10*time.Millisecond, false)
		p, err := limiter.NewPolicy(limiter.Params{Algorithm: limiter.Concurrency, Limit: 10, Window: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 * maxDetached {
			_ = s.Take(t.Context(), []limiter.Hit{{Key: "k", Policy: p, N: 1}}, make([]limiter.Decision, 1))
		}
		s.queue.mu.Lock()
		got := s.queue.detached()
		s.queue.mu.Unlock()
		if got != maxDetached {
			t.Errorf("%d requests wait for a late reply, want %d", got, maxDetached)
		}
		time.Sleep(2 * LateAnswer) // the workers end
	})
}

// A call that is given up is not reused while its request has not yet received the error: another request would receive
// that error.
func TestGivenUpCallIsNotUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := silentStore(t, time.Second, false).queue
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		c := q.newCall(ctx, time.Now(), time.Now().Add(q.timeout))
		q.add(c)
		q.expire()
		q.finish(c) // before the request has run
		if next := q.newCall(t.Context(), time.Now(), time.Now()); next == c {
			t.Error("the call is another request's before its own has left it")
		}
		if err := <-c.done; !errors.Is(err, context.Canceled) {
			t.Errorf("the request hears of %v, want %v", err, context.Canceled)
		}
	})
}

// A request to two servers that hang waits for both at the same time, from when it began to wait.
func TestServersThatHangTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGroup(silentStore(t, time.Second, false), map[string]*Store{"b": silentStore(t, time.Second, false)})
		a := limiter.Hit{Key: "a", Policy: differentPolicies(t, 1)[0], N: 1}
		b := a
		b.Key, b.Route = "b", Route{Store: "b"}
		check := func(within time.Duration, calls ...*storekit.Call) {
			t.Helper()
			start := time.Now()
			g.TakeAll(calls)
			if took := time.Since(start); took > within+noticeCancel {
				t.Errorf("they ended after %s, want %s", took, within)
			}
			for i, c := range calls {
				if !TimedOut(c.Err) {
					t.Errorf("call %d: %v, want a timeout", i, c.Err)
				}
			}
		}
		call := func(since time.Time, hits ...limiter.Hit) *storekit.Call {
			return &storekit.Call{Ctx: t.Context(), Since: since, Hits: hits, Out: make([]limiter.Decision, len(hits))}
		}
		check(time.Second, call(time.Now(), a), call(time.Now(), b))
		check(time.Second/4, call(time.Now().Add(-time.Second*3/4), a, b))
		time.Sleep(10 * time.Second)
	})
}

// Calls of TakeAll are given up like calls of Take: at the timeout, or soon after their request is cancelled, whether
// they are in flight or wait to be sent.
func TestCallsTakenTogetherAreGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := silentStore(t, time.Second, false)
		p := differentPolicies(t, 1)[0]
		start := time.Now()
		var all sync.WaitGroup
		since := &storekit.Call{Ctx: t.Context(), Since: start.Add(-time.Second / 2)}
		if c := s.queue.callOf(since, began(since)); c.deadline != since.Since.Add(time.Second) {
			t.Errorf("the timeout of a call does not run from when its request began to wait, but until %s", c.deadline)
		}
		for i := range 3 * maxWorkers { // the first ones fly, the others wait
			all.Go(func() {
				gone, cancel := context.WithCancel(t.Context())
				defer cancel()
				time.AfterFunc(30*time.Millisecond, cancel)
				calls := make([]*storekit.Call, 3)
				for j, ctx := range []context.Context{t.Context(), gone, t.Context()} {
					calls[j] = &storekit.Call{
						Ctx: ctx, Hits: []limiter.Hit{{Key: "k", Policy: p, N: 1}}, Out: make([]limiter.Decision, 1),
					}
				}
				s.TakeAll(calls)
				// If the alarm runs before the workers of the same instant, Redis is not yet silent, and expire looks again.
				if took := time.Since(start); took > time.Second+lateBy {
					t.Errorf("call %d ended after %s", i, took)
				}
				if !TimedOut(calls[0].Err) || !errors.Is(calls[1].Err, context.Canceled) || !TimedOut(calls[2].Err) {
					t.Errorf("call %d: %v, %v, %v; want two timeouts, and that the second was cancelled", i, calls[0].Err,
						calls[1].Err, calls[2].Err)
				}
			})
			synctest.Wait()
		}
		all.Wait()
		time.Sleep(2 * time.Second)
		if workers, waiting := s.Queued(); workers != 0 || waiting != 0 {
			t.Errorf("%d workers and %d calls are left", workers, waiting)
		}
	})
}
