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
	maxHits  = 100 // of a call: as many as a Redis decides without others noticing
	maxCalls = 8   // at a time
	// lastCharge is for how long rates are charged ahead when a Keeper stops: so long after, at the latest, an Envoy asks
	// another one.
	lastCharge = interval
)

// ask is hits that are charged together, and what the store answers.
type ask struct {
	book      *book // nil: of a sum, or of a limit in shadow mode
	hits      []limiter.Hit
	n, back   int64
	keep, owe float64 // parts of n: for what is in force, and for debts

	got     int64
	first   []limiter.Decision // the answer to n
	last    []limiter.Decision // the newest answer
	failure error

	shadow  *counted
	isFirst bool // of its bucket
	sum     *sum
}

// call is one call to the store, with the hits of some asks.
type call struct {
	asks []*ask
	hits []limiter.Hit
}

// take charges what is asked for, after it has returned what was not used. What does not fit is asked for again by as
// much as there is.
func (k *Keeper) take(ctx context.Context, asks []*ask) {
	k.round(ctx, asks, func(a *ask) int64 { return -a.back })
	k.round(ctx, asks, func(a *ask) int64 {
		a.last = nil
		return a.n
	})
	least := func(a *ask) (n int64) {
		n = a.n
		for i := range a.first {
			n = min(n, a.first[i].Remaining)
		}
		return max(n, 0)
	}
	k.round(ctx, asks, func(a *ask) int64 {
		if a.first = a.last; fits(a.first) {
			a.got = a.n
		}
		if a.first == nil || a.got > 0 {
			return 0
		}
		return least(a)
	})
	for _, a := range asks {
		if a.got == 0 && a.failure == nil && fits(a.last) {
			a.got = least(a)
		}
	}
}

// fits reports whether the store charged all of an answer's hits.
func fits(answer []limiter.Decision) bool {
	return answer != nil && !slices.ContainsFunc(answer, func(d limiter.Decision) bool { return !d.Allowed })
}

// round charges n hits of each limit of each ask. Hits of several limits are charged together or not at all, so they
// are a call by themselves; others share calls, and each is decided by itself, which shadow mode means.
func (k *Keeper) round(ctx context.Context, asks []*ask, n func(*ask) int64) {
	var all []*call
	open := map[any]*call{} // those that others may share, by server
	for _, a := range asks {
		want := n(a)
		if want == 0 || a.failure != nil {
			continue
		}
		var server any
		if k.o.Server != nil {
			server = k.o.Server(&a.hits[0])
		}
		c := open[server]
		if c == nil || len(c.hits) >= maxHits || len(a.hits) > 1 {
			c = &call{}
			if all = append(all, c); len(a.hits) == 1 {
				open[server] = c
			}
		}
		c.asks = append(c.asks, a)
		for _, h := range a.hits {
			if h.N = want; len(a.hits) == 1 && want > 0 {
				h.Mode = limiter.Shadow
			}
			c.hits = append(c.hits, h)
		}
	}
	k.callStore(ctx, all)
}

// callStore does the calls, some at a time.
func (k *Keeper) callStore(ctx context.Context, all []*call) {
	if len(all) == 0 {
		return
	}
	var wait sync.WaitGroup
	slots := make(chan struct{}, maxCalls)
	for i, c := range all {
		if i == len(all)-1 {
			k.do(ctx, c)
			break
		}
		slots <- struct{}{}
		wait.Go(func() {
			panics.Catch("charge of quotas", func() { k.do(ctx, c) })
			<-slots
		})
	}
	wait.Wait()
}

// do does one call, and hands its answers to its asks.
func (k *Keeper) do(ctx context.Context, c *call) {
	ctx, cancel := context.WithTimeout(guard.Background(ctx), k.o.Timeout)
	defer cancel()
	out := make([]limiter.Decision, len(c.hits))
	err := k.o.Store.Take(ctx, c.hits, out)
	for _, a := range c.asks {
		a.failure, a.last, out = err, out[:len(a.hits)], out[len(a.hits):]
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
		if n >= 1 {
			asks = append(asks, &ask{book: b, hits: b.hits, n: int64(min(n, b.capacity()))})
		}
	}
	k.mu.Unlock()
	k.take(ctx, asks)
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, a := range asks {
		k.stats.Charged += uint64(a.got) //nolint:gosec // not below 0
	}
}
