package guard_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// faulty is a store whose calls end in an error, after a while, if they have a key that is at fault.
type faulty struct {
	*far
	delay time.Duration
	err   error

	mu    sync.Mutex
	fault func(key string) bool // nil: none
}

func (f *faulty) breakKeys(fault func(key string) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

func (f *faulty) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	f.mu.Lock()
	fault := f.fault
	f.mu.Unlock()
	if fault != nil && slices.ContainsFunc(hits, func(h limiter.Hit) bool { return fault(h.Key) }) {
		select {
		case <-time.After(f.delay):
			return f.err
		case <-ctx.Done():
			return errors.Join(limiter.ErrUnavailable, ctx.Err())
		}
	}
	return f.far.Take(ctx, hits, out)
}

// byLetter has keys on shards that are called by their first letters.
func byLetter(h *limiter.Hit) guard.Shard { return guard.Shard{Address: h.Key[:1]} }

// newApart are leases before a store.
func newApart(t *testing.T, o guard.LeasesOptions) guard.LeasesStore {
	t.Helper()
	l := guard.Lease(o)
	t.Cleanup(func() { _ = l.Close() }) // what cannot be released is lost
	return l
}

// asks has a key asked once in a while by a request of its own, which must not fail, and returns how often it was
// admitted.
func asks(t *testing.T, wait *sync.WaitGroup, l guard.LeasesStore, p *limiter.Policy, key string, n int) *atomic.Int64 {
	t.Helper()
	admitted := new(atomic.Int64)
	wait.Go(func() {
		for range n {
			time.Sleep(time.Millisecond)
			var out [1]limiter.Decision
			if err := l.Take(context.Background(), []limiter.Hit{{Key: key, Policy: p, Route: onLease, N: 1}},
				out[:]); err != nil {
				t.Errorf("%s: %v", key, err)
				return
			}
			if out[0].Allowed {
				admitted.Add(1)
			}
		}
	})
	return admitted
}

// The permits and requests of a limit on one shard are those of another shard's fault neither while leases are renewed
// nor where requests ask both.
func TestDeadShardCostsNoOthersPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &faulty{far: newFar(t), delay: 15 * time.Millisecond, err: errDown}
		l := newApart(t, guard.LeasesOptions{Store: f, Shard: byLetter})
		p := hourly(t, 100_000)
		for _, key := range []string{"a1", "a2", "b1"} {
			heat(t, l, 100, limiter.Hit{Key: key, Policy: p, Route: onLease, N: 1})
		}
		before := charged(t, f.far, "a1", p) - 100
		permits, _ := l.Permits("a1")
		if permits == 0 || before != permits {
			t.Fatalf("%d permits on lease, %d charged beyond the requests", permits, before)
		}
		f.breakKeys(func(key string) bool { return key[0] == 'b' })
		var wait sync.WaitGroup
		admitted := map[string]*atomic.Int64{}
		for _, key := range []string{"a1", "a2"} {
			admitted[key] = asks(t, &wait, l, p, key, 2000)
		}
		for _, keys := range [][]string{{"b1"}, {"a1", "b1"}, {"b1", "a2"}} {
			wait.Go(func() {
				for range 500 {
					time.Sleep(4 * time.Millisecond)
					hits := make([]limiter.Hit, len(keys))
					for i := range keys {
						hits[i] = limiter.Hit{Key: keys[i], Policy: p, Route: onLease, N: 1}
					}
					if l.Take(context.Background(), hits, make([]limiter.Decision, len(keys))) == nil {
						for _, key := range keys { // by permits of both shards
							if n := admitted[key]; n != nil {
								n.Add(1)
							}
						}
					}
				}
			})
		}
		wait.Wait()
		time.Sleep(time.Second)
		synctest.Wait()
		for key, n := range admitted {
			permits, _ := l.Permits(key)
			if got, want := charged(t, f.far, key, p)-permits, 100+n.Load(); got != want {
				t.Errorf("%s: %d charged and not on lease, want %d", key, got, want)
			}
		}
		if s := l.Stats(); s.Answers < 3000 {
			t.Errorf("%+v: few requests were decided by leases", s)
		}
	})
}

// No permits are lost because the call that brings them is refused for another key's sake.
func TestRefusedKeyCostsNoOthersPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &faulty{far: newFar(t), delay: time.Millisecond, err: fmt.Errorf("%w: foreign", limiter.ErrUnavailable)}
		l := newApart(t, guard.LeasesOptions{Store: f, Answered: func(err error) bool { return errors.Is(err, f.err) }})
		p := hourly(t, 100_000)
		for range 100 {
			take(t, l, limiter.Hit{Key: "good", Policy: p, Route: onLease, N: 1})
		}
		f.set(func(n *network) { n.delay = time.Millisecond }) // so that requests wait for each other's calls
		f.breakKeys(func(key string) bool { return key != "good" })
		var wait sync.WaitGroup
		var admitted []*atomic.Int64
		for range 4 {
			admitted = append(admitted, asks(t, &wait, l, p, "good", 1000))
		}
		for i := range 8 { // each is looked at at moments of its own, some of which are those of the good one
			wait.Go(func() {
				time.Sleep(time.Duration(i) * leaseFor / 8)
				for range 1000 {
					time.Sleep(time.Millisecond)
					h := limiter.Hit{Key: fmt.Sprint("bad", i), Policy: p, Route: onLease, N: 1}
					_ = l.Take(context.Background(), []limiter.Hit{h}, make([]limiter.Decision, 1))
				}
			})
		}
		wait.Wait()
		time.Sleep(time.Second)
		synctest.Wait()
		sum := int64(100)
		for _, n := range admitted {
			sum += n.Load()
		}
		permits, _ := l.Permits("good")
		if got := charged(t, f.far, "good", p) - permits; got != sum {
			t.Errorf("%d charged and not on lease, want %d: permits are lost", got, sum)
		}
		if n := l.Stats().Keys; n != 0 {
			t.Errorf("%d keys are still hot a second after the last request", n)
		}
	})
}

// What a store that is not asked did not do has cost nothing: permits stay on lease.
func TestNotAskedCostsNoPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &faulty{far: newFar(t), err: fmt.Errorf("%w: %w", limiter.ErrUnavailable, guard.ErrNotAsked)}
		l := newApart(t, guard.LeasesOptions{Store: f})
		p := hourly(t, 100_000)
		heat(t, l, 200, limiter.Hit{Key: "k", Policy: p, Route: onLease, N: 1})
		held, _ := l.Permits("k")
		f.breakKeys(func(string) bool { return true })
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
