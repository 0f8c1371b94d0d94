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
	"github.com/weir-ratelimit/weir/pkg/panics"
)

var _ limiter.Store = (*Group)(nil)

// Group is several stores: a first one, and those that hits name by their Route. A request whose hits lie in
// several stores is charged in all of them or in none, like one in several slots of a cluster; if one of them has no
// scripts, each hit is charged by itself. Group is safe for concurrent use.
type Group struct {
	first *Store
	named map[string]*Store
}

// NewGroup returns the group of a first store and of named ones.
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

// String returns the names of all servers, without users and passwords.
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

// of returns the store that a limit names, nil if there is none.
func (g *Group) of(name string) *Store {
	if name == "" {
		return g.first
	}
	return g.named[name]
}

// Take implements limiter.Store. The first store's timeout bounds a request in several stores.
func (g *Group) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	if len(hits) == 0 {
		return nil
	}
	if err := check(hits, out); err != nil {
		return err
	}
	one, noScripts := true, false
	for i := range hits {
		name := storeName(&hits[i])
		s := g.of(name)
		if s == nil {
			return unavailable(requestError(fmt.Sprintf("there is no store %q: add --named-store %s=URL", name, name)))
		}
		if err := s.fit(hits[i : i+1]); err != nil {
			return err
		}
		noScripts = noScripts || s.o.NoScripts
		one = one && name == storeName(&hits[0])
	}
	if one {
		s := g.of(storeName(&hits[0])) // not its Take: the hits are checked
		return s.unavailable(s.take(ctx, hits, out))
	}
	if noScripts { // which cannot take back
		hits = slices.Clone(hits)
		hits[0].ByItself = true // one is enough
	}
	of := func(h *limiter.Hit) *Store { return g.of(storeName(h)) }
	return unavailable(takeSplit(ctx, g.first.within(ctx), hits, out, of, split(hits, of, false)))
}

// Refunds is Store.Refunds of every store. It calls hears(true, nil) when all of them hear refunds.
func (g *Group) Refunds(ctx context.Context, forget func(key string, reset bool), hears func(yes bool, why error)) {
	var mu sync.Mutex
	var wait sync.WaitGroup
	deaf := 1 + len(g.named)
	_ = g.each(func(s *Store) error {
		heard := false
		note := func(yes bool, why error) {
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
		}
		wait.Go(func() {
			panics.Restart(ctx.Done(), "refunds from Redis", func() {
				why := errPanic // unless Refunds returns
				defer func() {
					if why != nil {
						note(false, why)
					}
				}()
				s.Refunds(ctx, forget, note)
				why = nil
			})
		})
		return nil
	})
	wait.Wait()
}
