package redisstore

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

var _ limiter.Store = (*Group)(nil)

// Group holds a first store and named stores. The Route of a hit names the hit's store. A request with hits in several
// stores is charged in all of them or in none. Group is safe for concurrent use.
type Group struct {
	first *Store
	all   map[string]*Store // stores by name, the first one as ""; nil if first has every hit, whatever its Route
}

// NewGroup returns a group of a first store and named stores.
func NewGroup(first *Store, named map[string]*Store) *Group {
	all := map[string]*Store{"": first}
	maps.Copy(all, named)
	return &Group{first, all}
}

// Take implements limiter.Store. The longest timeout of its stores bounds a request in several stores.
func (g *Group) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	return g.take(&storekit.Call{Ctx: ctx, Hits: hits, Out: out}) //nolint:contextcheck // a batch outlives its requests
}

func (g *Group) take(c *storekit.Call) error {
	if len(c.Hits) == 0 {
		return nil
	}
	if err := g.check(c.Hits, c.Out); err != nil {
		return err
	}
	since := began(c)
	at, isOne := g.scope(c.Hits)
	if !isOne {
		return unavailable(g.takeSplit(c, since, false))
	}
	queue, err := at.store.lane(c.Ctx, c.Hits[0].Key)
	if err != nil {
		return at.store.unavailable(err)
	}
	if err = c.Ctx.Err(); err == nil {
		own := queue.callOf(c, since)
		own.scope = at
		if queue.add(own) {
			queue.begin(own.within == queue.timeout && queue.quick.Load())
		}
		err = queue.await(own, c.Out)
	}
	if err != nil && isMoving(err) && len(c.Hits) > 1 {
		return unavailable(g.takeSplit(c, since, true))
	}
	return unavailable(at.store.named(queue.shard, err))
}

// TakeAll decides several requests, each as Take does, in as few script calls as possible. It waits for all of them.
func (g *Group) TakeAll(calls []*storekit.Call) {
	if len(calls) == 1 {
		calls[0].Err = g.take(calls[0])
		return
	}
	var wait sync.WaitGroup
	defer wait.Wait()
	beside := func(calls []*storekit.Call, take func()) {
		for _, c := range calls {
			c.Err = unavailable(errPanic) // the result if take panics
		}
		wait.Add(1)
		panics.Go("requests to several servers", func() { defer wait.Done(); take() })
	}
	together := make(map[*Store][]*storekit.Call, 1)
	for i, c := range calls {
		if s := g.alone(c); s != nil {
			together[s] = append(together[s], c)
		} else {
			beside(calls[i:i+1], func() { c.Err = g.take(c) })
		}
	}
	for s, calls := range together {
		if len(together) == 1 {
			s.takeAll(calls)
		} else {
			beside(calls, func() { s.takeAll(calls) })
		}
	}
}

// takeAll decides several requests that have this store as their only scope.
func (s *Store) takeAll(calls []*storekit.Call) {
	s.queue.takeAll(calls)
	for _, c := range calls {
		c.Err = s.unavailable(c.Err)
	}
}

// began returns the time at which the request began to wait.
func began(c *storekit.Call) time.Time {
	if c.Since.IsZero() {
		return time.Now()
	}
	return c.Since
}

// alone returns the store that can decide the request in one script call, together with other requests. It returns nil
// if there is no such store, or if the request is empty or invalid, so that take returns the error.
func (g *Group) alone(c *storekit.Call) *Store {
	if len(c.Hits) == 0 || g.check(c.Hits, c.Out) != nil {
		return nil
	}
	if at, isOne := g.scope(c.Hits); isOne && !at.store.isSpread() {
		return at.store
	}
	return nil
}

// check returns an error if the function check refuses the hits, or if a hit names a store that is not in the group.
func (g *Group) check(hits []limiter.Hit, out []limiter.Decision) error {
	if err := check(hits, out); err != nil {
		return err
	}
	for i := range hits {
		if g.of(&hits[i]) == nil {
			name := limit.StoreName(&hits[i])
			return unavailable(requestError(fmt.Sprintf("there is no store %q: add --named-store %s=URL", name, name)))
		}
	}
	return nil
}

// of returns the store that has the hit's counter, or nil if the group has no store with that name.
func (g *Group) of(h *limiter.Hit) *Store {
	if g.all == nil {
		return g.first
	}
	return g.all[limit.StoreName(h)]
}

// scope returns the scope of the first hit. isOne reports whether all hits have that scope.
func (g *Group) scope(hits []limiter.Hit) (at scope, isOne bool) {
	at = g.of(&hits[0]).scopeOf(hits[0].Key)
	for i := range hits[1:] {
		h := &hits[i+1]
		if g.of(h).scopeOf(h.Key) != at {
			return at, false
		}
	}
	return at, true
}
