package guard_test

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// batched counts batches of calls.
type batched struct {
	*far
	batches atomic.Int64
}

func (b *batched) TakeAll(calls []*storekit.Call) {
	b.batches.Add(1)
	for _, c := range calls {
		c.Err = b.Take(c.Ctx, c.Hits, c.Out)
	}
}

// Many hot keys share the batches that acquire permits for them.
func TestHotKeysShareCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &batched{far: newFar(t)}
		l := newLeases(t, f)
		p := hourly(t, 100_000)
		keys := make([]string, 100)
		for i := range keys {
			keys[i] = fmt.Sprint("k", i)
		}
		const requests = 60_000 // 300 a second for each
		var before int64
		for i := range 2 * requests {
			if i == requests { // they have become hot
				before = f.batches.Load()
			}
			take(t, l, limiter.Hit{Key: keys[i*37%len(keys)], Policy: p, Route: onLease, N: 1})
			time.Sleep(33 * time.Microsecond)
		}
		t.Logf("%d batches at first, %d then", before, f.batches.Load()-before)
		if n := f.batches.Load() - before; n > requests/50 {
			t.Errorf("%d requests made %d batches, want at most once in 50", requests, n)
		}
	})
}

// Keys beyond MaxLeases are strict.
func TestManyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		p := leased(t, limiter.Params{Algorithm: limiter.Funnel, Limit: 1000, Window: time.Hour})
		for i := range guard.MaxLeases * 9 / 8 {
			for range 4 {
				take(t, l, limiter.Hit{Key: strconv.Itoa(i), Policy: p, Route: onLease, N: 1})
			}
		}
		if s := settled(l); s.Keys > guard.MaxLeases || s.Keys < guard.MaxLeases*9/10 {
			t.Errorf("%d keys are on lease, want about but at most %d", s.Keys, guard.MaxLeases)
		}
	})
}

// Concurrent callers never spend a permit twice.
func TestPermitsOfManyCallers(t *testing.T) {
	f := newFar(t)
	l := newLeases(t, f)
	p := hourly(t, 100_000)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 500 {
				hits := []limiter.Hit{
					{Key: "a", Policy: p, Route: onLease, N: 1},
					{Key: strconv.Itoa((g + i) % 4), Policy: p, Route: onLease, N: 1},
				}
				take(t, l, hits[:1+i%2]...)
			}
		})
	}
	wg.Wait()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	sum := int64(0)
	for k := range 4 {
		sum += charged(t, f, strconv.Itoa(k), p)
	}
	if a, lost := charged(t, f, "a", p), int64(l.Stats().Lost); a+sum != 6000+lost {
		t.Errorf("%d and %d charged, %d lost, want 6000 beside what is lost", a, sum, lost)
	}
	if n := l.Stats().Permits; n != 0 {
		t.Errorf("%d permits after Close", n)
	}
}
