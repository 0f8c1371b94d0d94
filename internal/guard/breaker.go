package guard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/internal/take"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

var _ take.Stage = (*Breaker)(nil)

// ErrBreakerOpen is wrapped by the errors with which an open Breaker fails calls.
var ErrBreakerOpen = errors.New("the store was not queried, since it does not respond")

// Bounds of a Breaker.
const (
	// silence is how long a queried server must leave all calls unanswered before its breaker opens.
	silence = 50 * time.Millisecond
	// The pause between probes doubles from firstPause to longestPause.
	firstPause   = 5 * time.Millisecond
	longestPause = 200 * time.Millisecond
	// mostSilent bounds the watched shards per server. It is the maximum number of masters that Redis recommends.
	mostSilent = 1000
)

// Server is one server of a store, or one cluster.
type Server interface {
	// Probe queries the server once; in a cluster, the shard that has the key now. It has the timeout of a request,
	// because a server that is too slow for requests has not recovered.
	Probe(ctx context.Context, key string) error
	// Shard returns the address of the shard that decides a key. It is empty for a server that is not a cluster, and while
	// the shard is unknown. It must not block. It is not called while all servers respond.
	Shard(key string) string
}

// Shard identifies a server that decides hits.
type Shard struct {
	// Store is the server's name in routes.
	Store string
	// Address is the address of a master in a cluster, else empty. It is also empty while the master is unknown.
	Address string
}

// BreakerOptions are the settings of a Breaker.
type BreakerOptions struct {
	// Servers has the servers of the store by their names in routes; the first server's name is empty.
	Servers map[string]Server
	// Answered reports whether an error of a call or a probe is a response of the server, which is therefore reachable.
	Answered func(err error) bool
	// Failures calls each for every server that failed a call, with its name in Servers, its shard and its error.
	Failures func(err error, each func(server, shard string, why error))
}

// Breaker is a circuit breaker: it stops calls to a server that does not respond. It opens once the server has been
// silent for a while. Calls then fail at once, without a wait, a goroutine or an allocation, while one half-open probe
// at a time tests the server. The first response closes the breaker.
//
// Only silence opens it. A server that responds with errors stays in use: its errors cost no wait, and may concern a
// single request. Each server of a store and each shard of a cluster has its own breaker.
type Breaker struct {
	o      BreakerOptions
	mu     sync.Mutex                         // must be held to change silent
	silent atomic.Pointer[map[Shard]*watched] // nil: no server is silent
	opened chan *watched                      // breakers that opened, for Run
}

// watched is a server (Address is empty) or a shard that has not responded since a first failure.
type watched struct {
	Shard
	key   string // key of one of the shard's counters; empty for a server
	since time.Time
	why   atomic.Pointer[error] // error of all calls while the breaker is open; nil: closed
}

// NewBreaker returns a Breaker for the servers. Only Run closes breakers that have opened.
func NewBreaker(o BreakerOptions) *Breaker {
	return &Breaker{o: o, opened: make(chan *watched, len(o.Servers)*mostSilent)}
}

// Open returns the number of servers and shards whose breaker is open.
func (b *Breaker) Open() (open int) {
	for _, w := range b.watched() {
		if w.why.Load() != nil {
			open++
		}
	}
	return open
}

func (b *Breaker) watched() map[Shard]*watched {
	if all := b.silent.Load(); all != nil {
		return *all
	}
	return nil
}

// set watches w, or stops watching if w is nil. The caller must hold b.mu.
func (b *Breaker) set(at Shard, w *watched) {
	after := map[Shard]*watched{at: w}
	maps.Copy(after, b.watched())
	if w == nil {
		delete(after, at)
	}
	if len(after) == 0 {
		b.silent.Store(nil)
	} else {
		b.silent.Store(&after)
	}
}

// forget stops watching w, which has responded to a call or, if isQueried is false, to a probe.
func (b *Breaker) forget(w *watched, isQueried bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.watched()[w.Shard] == w && (w.why.Load() == nil) == isQueried {
		b.set(w.Shard, nil)
	}
}

// shard returns the server or shard that decides a hit, as far as known without a query. It allocates nothing.
func (b *Breaker) shard(h *limiter.Hit) Shard {
	name := limit.StoreName(h)
	if b.o.Servers[name] == nil {
		name = ""
	}
	return Shard{Store: name, Address: b.o.Servers[name].Shard(h.Key)}
}

// Before implements take.Stage. It fails calls to servers whose breaker is open.
func (b *Breaker) Before(c *take.Call) (answered bool) {
	b.each(c.Hits, func(w *watched) {
		if why := w.why.Load(); why != nil && !answered {
			c.Err, answered = *why, true
		}
	})
	return answered
}

// each calls f for each watched server and shard that decides one of the hits.
func (b *Breaker) each(hits []limiter.Hit, f func(w *watched)) {
	all := b.watched()
	for i := 0; i < len(hits) && len(all) > 0; i++ {
		at := b.shard(&hits[i])
		if w := all[Shard{Store: at.Store}]; w != nil {
			f(w)
		}
		if w := all[at]; w != nil && at.Address != "" {
			f(w)
		}
	}
}

// After implements take.Stage. A failure counts against each server that the error names, unless the caller canceled
// the call or this process was too late to read the response.
func (b *Breaker) After(c *take.Call) {
	if c.Err == nil {
		b.each(c.Hits, b.isWell)
		return
	}
	canceled := errors.Is(c.Err, context.Canceled) || errors.Is(c.Ctx.Err(), context.Canceled)
	b.o.Failures(c.Err, func(server, shard string, why error) {
		at, all := Shard{Store: server, Address: shard}, b.watched()
		switch {
		case b.o.Answered(why):
			b.isWell(all[Shard{Store: server}])
			b.isWell(all[at])
		case !canceled && !errors.Is(why, limiter.ErrLate):
			if key, isKnown := b.blame(c.Hits, at); isKnown {
				b.unanswered(at, key, why)
			}
		}
	})
}

// isWell records that a server responded to a call.
func (b *Breaker) isWell(w *watched) {
	if w != nil && w.why.Load() == nil {
		b.forget(w, true)
	}
}

// blame returns the key of a hit that the shard decides. isKnown is false if the shard decides none (keys have moved),
// or if `at` is a whole server and the hits belong to several of its shards, any of which may have failed.
func (b *Breaker) blame(hits []limiter.Hit, at Shard) (key string, isKnown bool) {
	first := at
	for i := range hits {
		switch by := b.shard(&hits[i]); {
		case by == at && at.Address != "":
			return hits[i].Key, true
		case by.Store != at.Store || at.Address != "":
		case isKnown && by != first:
			return "", false
		default:
			first, isKnown = by, true
		}
	}
	return "", isKnown
}

// unanswered begins to watch a server or shard, and opens its breaker once it has been silent for long enough.
func (b *Breaker) unanswered(at Shard, key string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w, isFull := b.watched()[at], len(b.watched()) >= cap(b.opened)
	switch {
	case w == nil && b.o.Servers[at.Store] != nil && !isFull:
		b.set(at, &watched{Shard: at, key: key, since: time.Now()})
	case w == nil || w.why.Load() != nil || time.Since(w.since) < silence:
	default:
		if !errors.Is(err, limiter.ErrUnavailable) {
			err = fmt.Errorf("%w: %w", limiter.ErrUnavailable, err)
		}
		err = fmt.Errorf("%w: the last call: %w", ErrBreakerOpen, err)
		w.why.Store(&err)
		b.opened <- w // never full: its capacity is the maximum of watched servers and shards
	}
}

// Run probes each server and shard whose breaker opens, until ctx is done.
func (b *Breaker) Run(ctx context.Context) {
	var wait sync.WaitGroup
	defer wait.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case w := <-b.opened:
			wait.Go(func() { panics.Restart(ctx.Done(), "probe of Redis", func() { b.reopen(ctx, w) }) })
		}
	}
}

// reopen probes w until it responds, then closes its breaker.
func (b *Breaker) reopen(ctx context.Context, w *watched) {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		if err := b.o.Servers[w.Store].Probe(ctx, w.key); err == nil || b.o.Answered(err) {
			b.forget(w, false)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}
