package guard_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// A caller that no longer waits returns at once, even from another caller's call.
func TestCallerGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		p := hourly(t, 100_000)
		f.set(func(n *network) { n.delay = 10 * time.Millisecond })
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				defer cancel()
				start := time.Now()
				var out [1]limiter.Decision
				err := l.Take(ctx, []limiter.Hit{{Key: "k", Policy: p, Route: onLease, N: 1}}, out[:])
				if !errors.Is(err, limiter.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Take returns %v", err)
				}
				if took := time.Since(start); took != time.Millisecond {
					t.Errorf("Take took %s", took)
				}
			})
		}
		wg.Wait()
		time.Sleep(time.Second)
		if s := settled(l); s.Permits != 0 {
			t.Errorf("%+v: permits taken for callers who have gone are not released", s)
		}
	})
}

// Permits on lease are spent while the store fails; then requests get its error. After the outage, leases work again.
func TestStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		p := hourly(t, 100_000)
		h := limiter.Hit{Key: "k", Policy: p, Route: onLease, N: 1}
		admitted := int64(0)
		for range 200 {
			take(t, l, h)
			admitted++
		}
		held := settled(l).Permits
		if held == 0 {
			t.Fatal("nothing is held")
		}
		f.set(func(n *network) { n.down = true })
		for range held {
			take(t, l, h)
			admitted++
		}
		var out [1]limiter.Decision
		if err := l.Take(t.Context(), []limiter.Hit{h}, out[:]); !errors.Is(err, errDown) {
			t.Errorf("with nothing left, Take returns %v, want the store's error", err)
		}
		time.Sleep(10 * leaseFor)
		synctest.Wait()
		f.set(func(n *network) { n.down = false })
		for range 200 {
			take(t, l, h)
			admitted++
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if n := charged(t, f, "k", p); n != admitted {
			t.Errorf("%d charged, want %d", n, admitted)
		}
	})
}

// Permits are lost, and counted once, if the store fails for longer than a lease.
func TestLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		p := hourly(t, 100_000)
		for range 200 {
			take(t, l, limiter.Hit{Key: "k", Policy: p, Route: onLease, N: 1})
		}
		held := settled(l).Permits
		f.set(func(n *network) { n.down = true })
		time.Sleep(10 * leaseFor)
		synctest.Wait()
		f.set(func(n *network) { n.down = false })
		time.Sleep(10 * leaseFor)
		if s := settled(l); s.Permits != 0 || int64(s.Lost) != held || charged(t, f, "k", p) != 200+held {
			t.Errorf("%+v, %d charged; want %d lost", s, charged(t, f, "k", p), held)
		}
	})
}

// Permits that arrive after the end of their lease are released, not spent.
func TestSlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		p := hourly(t, 100_000)
		f.set(func(n *network) { n.delay = 2 * leaseFor })
		for range 20 {
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() { take(t, l, limiter.Hit{Key: "k", Policy: p, Route: onLease, N: 1}) })
			}
			wg.Wait()
		}
		time.Sleep(time.Second)
		if s := settled(l); s.Answers > 0 || s.Acquired == 0 || s.Permits != 0 || charged(t, f, "k", p) != 200 {
			t.Errorf("%+v, %d charged: want no answers and 200 charged", s, charged(t, f, "k", p))
		}
	})
}

// stuck never answers before its context is done.
type stuck struct{ limiter.Store }

func (stuck) Take(ctx context.Context, _ []limiter.Hit, _ []limiter.Decision) error {
	<-ctx.Done()
	return fmt.Errorf("%w: %w", limiter.ErrUnavailable, ctx.Err())
}

// Close releases permits on lease, has a timeout for a store that does not respond, and leaves a store that decides all
// requests.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := guard.Lease(f)
		p := hourly(t, 100_000)
		for i := range 3000 {
			take(t, l, limiter.Hit{Key: strconv.Itoa(i % 500), Policy: p, Route: onLease, N: 1})
		}
		held := settled(l).Permits
		if err := l.Close(); err != nil || held == 0 || settled(l).Permits != 0 {
			t.Errorf("Close returns %v; of %d permits it leaves %d", err, held, settled(l).Permits)
		}
		for i := range 500 {
			if n := charged(t, f, strconv.Itoa(i), p); n != 6 {
				t.Fatalf("%d charged, want 6", n)
			}
		}
		before := f.calls.Load()
		for range 10 {
			take(t, l, limiter.Hit{Key: "0", Policy: p, Route: onLease, N: 1})
		}
		if n := f.calls.Load() - before; n != 10 {
			t.Errorf("%d calls for 10 requests after Close", n)
		}
	})
}

// Close has a timeout for a store that does not respond.
func TestCloseInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := guard.Lease(f)
		p := hourly(t, 100_000)
		heat(t, l, 200, limiter.Hit{Key: "k", Policy: p, Route: onLease, N: 1})
		f.set(func(n *network) { n.Store = stuck{} })
		start := time.Now()
		if err := l.Close(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close returns %v", err)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("Close took %s", took)
		}
	})
}

// unasked is a store whose calls are not made while it is open.
type unasked struct {
	*far
	open atomic.Bool
}

func (s *unasked) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	if s.open.Load() {
		return fmt.Errorf("%w: %w", limiter.ErrUnavailable, guard.ErrNotAsked)
	}
	return s.far.Take(ctx, hits, out)
}

// If a call was not sent to the store, permits stay on lease.
func TestNotAskedCostsNoPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &unasked{far: newFar(t)}
		l := guard.Lease(f)
		defer l.Close() //nolint:errcheck // what cannot be released is lost
		p := hourly(t, 100_000)
		heat(t, l, 200, limiter.Hit{Key: "k", Policy: p, Route: onLease, N: 1})
		held, _ := l.Permits("k")
		f.open.Store(true)
		var out [1]limiter.Decision
		err := l.Take(t.Context(), []limiter.Hit{{Key: "k", Policy: p, Route: onLease, N: held + 1}}, out[:])
		if !errors.Is(err, guard.ErrNotAsked) {
			t.Fatalf("%v, want ErrNotAsked", err)
		}
		synctest.Wait()
		if now, _ := l.Permits("k"); now != held || held == 0 {
			t.Errorf("%d permits after a call that was not made, %d before", now, held)
		}
		hits := []limiter.Hit{{Key: "k", Policy: p, Route: onLease, N: 1}, {Key: "other", Policy: p, Route: onLease, N: 1}}
		if err := l.Take(t.Context(), hits, make([]limiter.Decision, 2)); !errors.Is(err, guard.ErrNotAsked) {
			t.Fatalf("%v, want ErrNotAsked", err)
		}
		if now, _ := l.Permits("k"); now != held {
			t.Errorf("%d permits after a request that was not asked of another store, %d before", now, held)
		}
	})
}
