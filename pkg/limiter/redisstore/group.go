package redisstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

var _ limiter.Store = (*Group)(nil)

// Group is several stores: a first one, and those that limits name (limiter.Params.Store). A request whose hits lie in
// several is charged in all of them or in none, as one whose hits lie in several slots of a cluster is.
type Group struct {
	first *Store
	named map[string]*Store
}

// NewGroup puts stores together.
func NewGroup(first *Store, named map[string]*Store) *Group {
	return &Group{first: first, named: named}
}

// each calls f for every store.
func (g *Group) each(f func(s *Store) error) error {
	errs := []error{f(g.first)}
	for _, s := range g.named {
		errs = append(errs, f(s))
	}
	return errors.Join(errs...)
}

// String names all servers, without user and password.
func (g *Group) String() string {
	all := []string{g.first.String()}
	for _, name := range slices.Sorted(maps.Keys(g.named)) {
		all = append(all, name+"="+g.named[name].String())
	}
	return strings.Join(all, ", ")
}

// Ping is Store.Ping of every store.
func (g *Group) Ping(ctx context.Context) error {
	return g.each(func(s *Store) error { return s.Ping(ctx) })
}

// of is the store that a limit names.
func (g *Group) of(name string) *Store {
	if name == "" {
		return g.first
	}
	return g.named[name]
}

// Take implements limiter.Store. A request in several stores may take as long as the first one's timeout.
func (g *Group) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	if len(hits) == 0 {
		return nil
	}
	if err := limiter.Check(hits, out); err != nil {
		return err
	}
	one := true
	for i := range hits {
		name := hits[i].Policy.Store()
		s := g.of(name)
		if s == nil {
			return unavailable(requestError(fmt.Sprintf("there is no store %q: add --named-store %s=URL", name, name)))
		}
		if err := s.fitForRedisCell(hits[i : i+1]); err != nil {
			return s.unavailable(err)
		}
		one = one && name == hits[0].Policy.Store()
	}
	if one {
		s := g.of(hits[0].Policy.Store()) // its Take would check the hits again
		return s.unavailable(s.take(ctx, hits, out))
	}
	of := func(h *limiter.Hit) *Store { return g.of(h.Policy.Store()) }
	ctx, cancel := context.WithTimeout(ctx, g.first.timeout)
	defer cancel()
	err := takeSeveral(ctx, hits, out, split(hits, of, false))
	if isMoving(err) && ctx.Err() == nil {
		err = takeSeveral(ctx, hits, out, split(hits, of, true))
	}
	return unavailable(err)
}

// Refunds is Store.Refunds of every store: no refund is missed while all of them are heard.
func (g *Group) Refunds(ctx context.Context, forget func(key string, reset bool), hears func(yes bool, why error)) {
	var mu sync.Mutex
	var wait sync.WaitGroup
	deaf := 1 + len(g.named)
	_ = g.each(func(s *Store) error {
		heard := false
		wait.Go(func() {
			s.Refunds(ctx, forget, func(yes bool, why error) {
				mu.Lock()
				defer mu.Unlock()
				if yes != heard {
					heard = yes
					if yes {
						deaf--
					} else {
						deaf++
					}
				}
				if !yes || deaf == 0 {
					hears(yes, why)
				}
			})
		})
		return nil
	})
	wait.Wait()
}
