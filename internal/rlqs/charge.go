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
	// maxCalls is the maximum number of concurrent calls to the store. A remote store combines concurrent calls.
	maxCalls = 250
	// lastCharge is the time for which a stopping Keeper charges rates, because then all Envoys use another server.
	lastCharge = interval
)

// ask is a charge for a book, a demand, or a report of a limit in shadow mode, with the store's result.
type ask struct {
	book   *book
	demand *demand
	shadow *Decided

	hits    []limiter.Hit
	n, back int64 // hits of each limit to charge and to refund

	got         int64
	first, last []limiter.Decision // decisions on n, and the latest decisions
	failure     error
}

// chargeAll runs all charges concurrently.
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

// charge refunds a.back hits, then charges a.n hits, or the remaining hits if a.n do not fit.
func (k *Keeper) charge(ctx context.Context, a *ask) {
	take := func(n int64) bool {
		hits := slices.Clone(a.hits)
		for i := range hits {
			if hits[i].N = n; len(hits) == 1 && n > 0 {
				hits[i].Mode = limiter.Shadow // for one limit, the decision is the same, and shadow mode bypasses leases
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

// chargeLast charges the requests that Envoys may admit until they have found another server, as far as they fit. The
// assignments remain valid.
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
