package guard

import (
	"context"
	"testing"

	"github.com/weir-ratelimit/weir/internal/take"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// Permits returns the permits on lease of a counter. leased reports whether its key has a lease.
func (l *Leases) Permits(key string) (permits int64, leased bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.leases[key]; e != nil {
		return e.permits, true
	}
	return 0, false
}

// Cached returns the cached denial that answers a hit of Mode Enforce; ok is false without one.
func (d *Denials) Cached(h limiter.Hit) (cached limiter.Decision, ok bool) {
	hits, out := [1]limiter.Hit{h}, [1]limiter.Decision{}
	ok = d.believes.Load() && d.answer(d.now(), hits[:], out[:])
	return out[0], ok
}

// LeasesStore is a store with leases in front of it.
type LeasesStore struct {
	*Leases
	*take.Chain
}

// Lease makes leases in front of a store.
func Lease(s limiter.Store) LeasesStore {
	l := NewLeases(take.Of(s))
	return LeasesStore{l, take.Of(s).Behind(l)}
}

// denialsStore is a store with cached denials in front of it.
type denialsStore struct {
	*Denials
	*take.Chain
}

func caching(s limiter.Store, now func() int64) denialsStore {
	d := NewDenials(now)
	return denialsStore{d, take.Of(s).Behind(d)}
}

// breakerStore is a store with a breaker in front of it.
type breakerStore struct {
	*Breaker
	*take.Chain
}

func breakerOf(s limiter.Store, o BreakerOptions) breakerStore {
	b := NewBreaker(o)
	return breakerStore{b, take.Of(s).Behind(b)}
}

// StageAllocs returns the average number of allocations of a call in a stage.
func StageAllocs(s take.Stage, hits []limiter.Hit, calls int) float64 {
	c := &take.Call{Call: storekit.Call{Ctx: context.Background(), Hits: hits, Out: make([]limiter.Decision, len(hits))}}
	return testing.AllocsPerRun(calls, func() {
		if c.Err = nil; !s.Before(c) {
			s.After(c)
		}
	})
}
