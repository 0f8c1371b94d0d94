package redisstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"

	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

var _ limiter.Store = (*Group)(nil)

// Group is several stores: a first one, and those that hits name by their Route. A request whose hits lie in
// several stores is charged in all of them or in none, like one in several slots of a cluster. Group is safe for
// concurrent use.
type Group struct {
	first *Store
	all   map[string]*Store // by their names; the first has none
}

// NewGroup returns the group of a first store and of named ones.
func NewGroup(first *Store, named map[string]*Store) *Group {
	all := map[string]*Store{"": first}
	maps.Copy(all, named)
	return &Group{first, all}
}

// each calls f for every store.
func (g *Group) each(f func(s *Store) error) error {
	var errs []error
	for _, s := range g.all {
		errs = append(errs, f(s))
	}
	return errors.Join(errs...)
}

// String returns the names of all servers, without users and passwords.
func (g *Group) String() string {
	var all []string
	g.Each(func(name string, s *Store) {
		if name != "" {
			name += "="
		}
		all = append(all, name+s.String())
	})
	return strings.Join(all, ", ")
}

// Ping is Store.Ping of every store.
func (g *Group) Ping(ctx context.Context) error {
	return g.each(func(s *Store) error { return s.Ping(ctx) })
}

// Take implements limiter.Store. The first store's timeout bounds a request in several stores.
func (g *Group) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	if len(hits) == 0 {
		return nil
	}
	if err := check(hits, out); err != nil {
		return err
	}
	one := true
	for i := range hits {
		name := storeName(&hits[i])
		s := g.all[name]
		if s == nil {
			return unavailable(requestError(fmt.Sprintf("there is no store %q: add --named-store %s=URL", name, name)))
		}
		if err := s.fit(hits[i : i+1]); err != nil {
			return err
		}
		one = one && name == storeName(&hits[0])
	}
	if one {
		s := g.all[storeName(&hits[0])] // not its Take: the hits are checked
		return s.unavailable(s.take(ctx, hits, out))
	}
	of := func(h *limiter.Hit) *Store { return g.all[storeName(h)] }
	return unavailable(takeSplit(ctx, g.first.within(ctx), hits, out, of, split(hits, of, false)))
}

// Refunds is Store.Refunds of every store. It calls hears(true, nil) when all of them hear refunds.
func (g *Group) Refunds(ctx context.Context, forget func(key string, reset bool), hears func(yes bool, why error)) {
	var mu sync.Mutex
	var wait sync.WaitGroup
	hearing := map[*Store]bool{}
	for _, s := range g.all {
		note := func(yes bool, why error) {
			mu.Lock()
			defer mu.Unlock()
			if hearing[s] = yes; !yes {
				delete(hearing, s)
			}
			if !yes || len(hearing) == len(g.all) {
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
	}
	wait.Wait()
}
