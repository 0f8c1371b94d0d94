package guard_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// lateAnswers is a store that delays its answers to calls with certain numbers of hits, and to calls that acquire
// permits.
type lateAnswers struct {
	limiter.Store
	late    map[int64]time.Duration
	permits time.Duration
}

func (s lateAnswers) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	err := s.Store.Take(ctx, hits, out)
	for _, h := range hits {
		if h.Mode == limiter.Enforce {
			time.Sleep(s.late[h.N])
		} else {
			time.Sleep(s.permits)
		}
	}
	return err
}

// Decisions of a lease use the response to the call that was sent last, in whatever order responses arrive.
func TestAnswersOutOfOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeases(t, lateAnswers{Store: newFar(t), late: map[int64]time.Duration{
			5000: 5 * time.Millisecond,
			5001: 3 * time.Millisecond,
		}})
		p := hourly(t, 100_000)
		hits := func(n int64) limiter.Hit { return limiter.Hit{Key: "k", Policy: p, Route: onLease, N: n} }
		for range 10 {
			take(t, l, hits(1))
		}
		var wg sync.WaitGroup
		for n := range int64(3) {
			wg.Go(func() { take(t, l, hits(5000+n)) })
			time.Sleep(time.Millisecond)
		}
		wg.Wait()
		before := l.Stats().Answers
		got := take(t, l, hits(1))[0].Remaining
		if want := p.Limit() - 10 - 3*5001 - 1; got != want || l.Stats().Answers != before+1 {
			t.Errorf("%d remain, want %d; %+v", got, want, l.Stats())
		}
	})
}

// Permits belong to the window in which they were charged, even if a response in the next window arrives earlier.
func TestPermitsOfTheLastWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeases(t, lateAnswers{Store: newFar(t), permits: 5 * time.Millisecond})
		p := leased(t, limiter.Params{Algorithm: limiter.FixedWindow, Limit: 10_000, Window: time.Second})
		hits := func(n int64) limiter.Hit { return limiter.Hit{Key: "k", Policy: p, Route: onLease, N: n} }
		time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(997 * time.Millisecond)))
		for range 3 {
			take(t, l, hits(1))
		}
		var wg sync.WaitGroup
		wg.Go(func() { take(t, l, hits(500)) })
		time.Sleep(4 * time.Millisecond)
		take(t, l, hits(1100)) // more than is on its way
		wg.Wait()
		time.Sleep(2 * time.Millisecond) // until they have arrived
		before := settled(l)
		take(t, l, hits(1))
		if s := settled(l); before.Permits == 0 || s.Lost != uint64(before.Permits) || s.Answers != before.Answers {
			t.Errorf("permits of the last window: %+v, then %+v", before, s)
		}
	})
}
