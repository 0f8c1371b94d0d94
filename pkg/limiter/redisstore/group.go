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

// Group is several stores: a first one, and those that hits name by their Route. A request whose hits lie in
// several stores is charged in all of them or in none, like one in several slots of a cluster. Group is safe for
// concurrent use.
type Group struct {
	first *Store
	all   map[string]*Store // by their names; the first has none. nil: first has the hits of any route
}

// NewGroup returns the group of a first store and of named ones.
func NewGroup(first *Store, named map[string]*Store) *Group {
	all := map[string]*Store{"": first}
	maps.Copy(all, named)
	return &Group{first, all}
}

// Take implements limiter.Store. The first store's timeout bounds a request in several stores.
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
	if err = queue.take(c, since, at); err != nil && isMoving(err) && len(c.Hits) > 1 {
		return unavailable(g.takeSplit(c, since, true))
	}
	return unavailable(at.store.named(queue.shard, err))
}

// TakeAll is Take for several requests, each with its own answer, in as few calls to a server as they fit in. It
// returns when each has one.
func (g *Group) TakeAll(calls []*storekit.Call) {
	if len(calls) == 1 {
		calls[0].Err = g.take(calls[0])
		return
	}
	var wait sync.WaitGroup
	defer wait.Wait()
	beside := func(calls []*storekit.Call, take func()) {
		for _, c := range calls {
			c.Err = unavailable(errPanic) // unless take returns
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

// takeAll decides calls together.
func (s *Store) takeAll(calls []*storekit.Call) {
	s.queue.takeAll(calls)
	for _, c := range calls {
		c.Err = s.unavailable(c.Err)
	}
}

// began returns when the request of a call began to wait.
func began(c *storekit.Call) time.Time {
	if c.Since.IsZero() {
		return time.Now()
	}
	return c.Since
}

// alone returns the store that decides the request by one script call, with those of others; nil if there is none, or
// if it is to say what is wrong with the request.
func (g *Group) alone(c *storekit.Call) *Store {
	if len(c.Hits) == 0 || g.check(c.Hits, c.Out) != nil {
		return nil
	}
	if at, isOne := g.scope(c.Hits); isOne && !at.store.isSpread() {
		return at.store
	}
	return nil
}

// check finds hits that cannot be decided: see check, and no store of the name.
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

// of returns the store that has the hit's counter, nil if there is none of that name.
func (g *Group) of(h *limiter.Hit) *Store {
	if g.all == nil {
		return g.first
	}
	return g.all[limit.StoreName(h)]
}

// scope returns the scope that all hits have, if it is one.
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
