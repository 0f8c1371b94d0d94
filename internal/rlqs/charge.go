package rlqs

import (
	"context"
	"slices"
	"sync"

	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

const (
	// maxCalls is the most calls to the store at a time. A store far away sends those of one moment together.
	maxCalls = 250
	// lastCharge is for how long rates are charged ahead when a Keeper stops: so long after, at the latest, an Envoy asks
	// another one.
	lastCharge = interval
)

// ask is hits to charge for a book, a demand, or a report of a limit in shadow mode, and what the store answered.
type ask struct {
	book   *book
	demand *demand
	shadow *Decided

	hits    []limiter.Hit
	n, back int64 // hits of each limit to charge and to return

	got         int64
	first, last []limiter.Decision // the answer to n, and the newest one
	failure     error
}

// chargeAll does all that is asked for, at the same time.
func (k *Keeper) chargeAll(ctx context.Context, asks []*ask) {
	todo := make(chan *ask, len(asks))
	for _, a := range asks {
		todo <- a
	}
	close(todo)
	var wait sync.WaitGroup
	for range min(len(asks), maxCalls) {
		wait.Go(func() {
			for a := range todo {
				panics.Catch("charge of quotas", func() { k.charge(ctx, a) })
			}
		})
	}
	wait.Wait()
}

// charge returns hits, then charges others. If these do not fit, it charges as many as remain.
func (k *Keeper) charge(ctx context.Context, a *ask) {
	take := func(n int64) bool {
		hits := slices.Clone(a.hits)
		for i := range hits {
			if hits[i].N = n; len(hits) == 1 && n > 0 {
				hits[i].Mode = limiter.Shadow // of one limit, the decision is the same, and no lease makes it
			}
		}
		a.last = make([]limiter.Decision, len(hits))
		a.failure = k.o.Store.Take(guard.Background(ctx), hits, a.last)
		return a.failure == nil && !slices.ContainsFunc(a.last, func(d limiter.Decision) bool { return !d.Allowed })
	}
	if a.back > 0 {
		take(-a.back)
	}
	if a.failure != nil || a.n <= 0 {
		return
	}
	n, fits := a.n, take(a.n)
	if a.first = a.last; !fits && a.failure == nil {
		for i := range a.first {
			n = min(n, a.first[i].Remaining)
		}
		fits = n > 0 && take(n)
	}
	if fits {
		a.got = n
	}
}

// chargeLast charges what the Envoys may admit until they have found another server, as far as it fits. They keep what
// they were assigned.
func (k *Keeper) chargeLast(ctx context.Context) {
	k.mu.Lock()
	now := k.now()
	var asks []*ask
	for _, b := range k.books {
		b.account(now)
		n := -b.ahead
		for _, c := range b.clients {
			n += c.rate * min(lastCharge, c.expires-now).Seconds()
		}
		asks = append(asks, &ask{hits: b.hits, n: int64(min(n, b.capacity()))})
	}
	asks, k.shadows = append(asks, k.shadows...), nil
	k.mu.Unlock()
	k.chargeAll(ctx, asks)
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, a := range asks {
		k.noteShadow(a)
	}
}
