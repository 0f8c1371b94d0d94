package redisstore

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// silentStore is a store on a server that reads and never answers, in a bubble of virtual time.
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

// A request to a server that does not answer returns at its own deadline, at the store's timeout, or soon after it is
// cancelled, also where other requests wait longer or shorter. Nothing is left of it.
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
				// The first ones occupy all flights, the others wait in the queue.
				for range maxFlights {
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
				if s.queue.flights+len(s.queue.waiting)+len(s.queue.flying) != 0 || s.queue.alarmSet {
					t.Errorf("%d flights, %d of them with a batch, %d requests waiting, alarm set %t; want nothing left",
						s.queue.flights, len(s.queue.flying), len(s.queue.waiting), s.queue.alarmSet)
				}
			})
		})
	}
}

// A call that is given up is not used again, even if its request has yet to hear of it: another request would take the
// news for its own.
func TestGivenUpCallIsNotUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := silentStore(t, time.Second, false).queue
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		c, _ := q.newCall(ctx, nil)
		q.await(c)
		q.expire()
		q.finish(c) // before the request has run
		if next, _ := q.newCall(t.Context(), nil); next == c {
			t.Error("the call is another request's before its own has left it")
		}
		if err := c.wait(); !errors.Is(err, context.Canceled) {
			t.Errorf("the request hears of %v, want %v", err, context.Canceled)
		}
	})
}

// notedWaiter notes when and how it ended.
type notedWaiter struct {
	gone  chan struct{} // closed when nobody waits
	ended chan error
}

func (w *notedWaiter) Taken(err error) { w.ended <- err }
func (*notedWaiter) BatchTaken()       {}
func (w *notedWaiter) IsGone() bool {
	select {
	case <-w.gone:
		return true
	default:
		return false
	}
}

// Waiters are given up as requests with a goroutine are: at the timeout, or soon after their request is gone, whether
// their call is under way, waits for another one, or was never sent.
func TestWaitersAreGivenUp(t *testing.T) {
	for name, sends := range map[string]bool{"sent": true, "not sent": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := silentStore(t, time.Second, false)
				p := differentPolicies(t, 1)[0]
				start := time.Now()
				ends := func(w *notedWaiter, within time.Duration, right func(error) bool) {
					t.Helper()
					err := <-w.ended
					if took := time.Since(start); !right(err) || !errors.Is(err, limiter.ErrUnavailable) || took > within {
						t.Errorf("ended after %s with %v, want it within %s", took, err, within)
					}
				}
				var patient, gone []*notedWaiter
				for range 3 * maxFlights { // the first ones fly, the others wait
					for _, list := range []*[]*notedWaiter{&patient, &gone} {
						w := &notedWaiter{gone: make(chan struct{}), ended: make(chan error, 1)}
						*list = append(*list, w)
						s.TakeLater([]limiter.Hit{{Key: "k", Policy: p, N: 1}}, make([]limiter.Decision, 1), w)
						if sends {
							s.Send()
							synctest.Wait()
						}
					}
				}
				time.Sleep(30 * time.Millisecond)
				for _, w := range gone {
					close(w.gone)
				}
				for _, w := range gone {
					ends(w, 30*time.Millisecond+noticeCancel, func(err error) bool { return errors.Is(err, context.Canceled) })
				}
				for _, w := range patient {
					if sends {
						ends(w, time.Second, TimedOut)
					} else { // Redis has not failed
						ends(w, mostLate*time.Second, func(err error) bool { return errors.Is(err, limiter.ErrLate) })
					}
				}
				time.Sleep(2 * time.Second)
				if flights, waiting := s.Queued(); sends && (flights != 0 || waiting != 0) {
					t.Errorf("%d flights and %d calls are left", flights, waiting)
				}
			})
		})
	}
}
