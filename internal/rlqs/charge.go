package rlqs

import (
	"context"
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

// call is one call to the store.
type call struct {
	hits []limiter.Hit
	out  []limiter.Decision
	err  error
	// asks are those whose hits the call has, and at which index: the hit of one that counts one limit, or the first one.
	asks []*ask
	at   []int
}

func (c *call) add(a *ask, h limiter.Hit) {
	if a != nil {
		c.asks, c.at = append(c.asks, a), append(c.at, len(c.hits))
	}
	c.hits = append(c.hits, h)
}

// take charges what is asked for. What does not fit is asked for again by as much as there is. In the first calls what
// was not used is returned, so that nobody is denied for it.
func (k *Keeper) take(ctx context.Context, asks []*ask) {
	returns, charges := calls{most: len(asks)}, calls{most: len(asks)}
	for _, a := range asks {
		if a.back > 0 {
			for _, h := range a.hits {
				h.N = -a.back
				returns.of(k, &h).add(nil, h)
			}
		}
		if a.n > 0 {
			charges.charge(k, a, a.n)
		}
	}
	k.callStore(ctx, returns.all)
	k.callStore(ctx, charges.all)
	var rest calls
	for _, a := range asks {
		if a.failure != nil || a.first == nil {
			continue
		}
		least, fits := a.n, true
		for i := range a.first {
			least, fits = min(least, a.first[i].Remaining), fits && a.first[i].Allowed
		}
		switch {
		case fits:
			a.got = a.n
		case least > 0:
			rest.charge(k, a, least)
		}
	}
	k.callStore(ctx, rest.all)
	for _, c := range rest.all {
		for i, a := range c.asks {
			if fits(c, i) && c.err == nil {
				a.got = c.n(i)
			}
		}
	}
}

// calls are those that are being filled, at most one for each server.
type calls struct {
	most int // hits, as far as is known
	all  []*call
	open map[any]*call
}

// of returns the call for a hit that is decided by itself.
func (cs *calls) of(k *Keeper, h *limiter.Hit) *call {
	var server any
	if k.o.Server != nil {
		server = k.o.Server(h)
	}
	c := cs.open[server]
	if c == nil || len(c.hits) >= maxHits {
		n := min(cs.most, maxHits)
		c = &call{hits: make([]limiter.Hit, 0, n), asks: make([]*ask, 0, n), at: make([]int, 0, n)}
		cs.all = append(cs.all, c)
		if cs.open == nil {
			cs.open = make(map[any]*call)
		}
		cs.open[server] = c
	}
	return c
}

// charge adds n hits of a group to a call. Those of several limits are charged together or not at all, so they are a
// call by themselves; others share calls, and each is decided by itself, which shadow mode means.
func (cs *calls) charge(k *Keeper, a *ask, n int64) {
	if len(a.hits) == 1 {
		h := a.hits[0]
		h.N, h.Mode = n, limiter.Shadow
		cs.of(k, &h).add(a, h)
		return
	}
	c := &call{asks: []*ask{a}, at: []int{0}}
	for _, h := range a.hits {
		h.N = n
		c.hits = append(c.hits, h)
	}
	cs.all = append(cs.all, c)
}

// answer is what the call answers to its i-th ask.
func (c *call) answer(i int) []limiter.Decision {
	a := c.asks[i]
	return c.out[c.at[i] : c.at[i]+len(a.hits)]
}

func (c *call) n(i int) int64 { return c.hits[c.at[i]].N }

func fits(c *call, i int) bool {
	if c.err != nil {
		return false
	}
	for _, d := range c.answer(i) {
		if !d.Allowed {
			return false
		}
	}
	return true
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

// do does one call.
func (k *Keeper) do(ctx context.Context, c *call) {
	ctx, cancel := context.WithTimeout(guard.Background(ctx), k.o.Timeout)
	defer cancel()
	c.out = make([]limiter.Decision, len(c.hits))
	c.err = k.o.Store.Take(ctx, c.hits, c.out)
	for i, a := range c.asks {
		if c.err != nil {
			a.failure = c.err
			continue
		}
		a.last = c.answer(i)
		if a.first == nil {
			a.first = a.last
		}
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
