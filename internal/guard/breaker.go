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

// ErrNotAsked is wrapped by the errors of a Breaker that is open.
var ErrNotAsked = errors.New("the store was not queried, since it does not answer")

// Of a Breaker.
const (
	// silence is how long nothing may have been answered, though it was asked, before the breaker opens.
	silence = 50 * time.Millisecond
	// firstPause and longestPause are between probes: each is twice as long as the one before.
	firstPause   = 5 * time.Millisecond
	longestPause = 200 * time.Millisecond
	// mostSilent is the most shards of a server that are watched at once: as many masters as Redis recommends at most.
	mostSilent = 1000
)

// Server is one of the servers behind a store, or a cluster of them.
type Server interface {
	// Probe asks for a sign of life, in a cluster of whoever has the key by now, if there is one. It takes no longer than
	// a request may: a server that is too slow for requests is not back.
	Probe(ctx context.Context, key string) error
	// Shard is who decides a key in a cluster. It is empty for what is no cluster, and while that is not known. It does
	// not wait, and is not called while all servers answer.
	Shard(key string) string
}

// Shard is a server that decides hits.
type Shard struct {
	// Store is the name that routes have for it.
	Store string
	// Address is that of a master of a cluster; empty for what is no cluster, and while that is not known.
	Address string
}

// BreakerOptions are a Breaker's parts.
type BreakerOptions struct {
	// Servers are those that decide, by the names that routes have for them; the first one has none.
	Servers map[string]Server
	// Answered says whether an error, of a call or of a probe, is an answer: the server is there, and says no.
	Answered func(err error) bool
	// Failures calls each for every server that an error of a call is about, by its name in Servers and, in a cluster, its
	// shard, with that server's own error.
	Failures func(err error, each func(server, shard string, why error))
}

// Breaker stops asking a server that does not answer: it is open from when nothing has been answered for a while, and
// calls fail at once, without a wait, a goroutine or an allocation. Meanwhile the server is probed, by one call at a
// time, and asked again from the first answer on.
//
// Only silence opens it. A server that answers with errors is still asked: they cost no wait, and may be a request's
// own. Each server of a store that has several is watched by itself, and so is each shard of a cluster. Only those are
// kept that are silent: while all is well they cost nothing.
type Breaker struct {
	o      BreakerOptions
	mu     sync.Mutex                         // held to change silent
	silent atomic.Pointer[map[Shard]*watched] // nil: all have answered
	opened chan *watched                      // for Run
}

// watched is a server, as a whole if its Address is empty, or a shard. It has not answered since the last answer.
type watched struct {
	Shard
	key   string // of a counter of the shard; empty for a server as a whole
	since time.Time
	why   atomic.Pointer[error] // the error of calls while it is not asked; nil: it is
}

// NewBreaker makes a breaker for the servers. Once open, it closes only while Run runs.
func NewBreaker(o BreakerOptions) *Breaker {
	return &Breaker{o: o, opened: make(chan *watched, len(o.Servers)*mostSilent)}
}

// Open returns how many servers, and shards of them, are not asked.
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

// set has w watched, or nothing if that is nil. The caller holds b.mu.
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

// forget ends to watch a server or shard, which has answered: a call, if it is asked, or else a probe.
func (b *Breaker) forget(w *watched, isAsked bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.watched()[w.Shard] == w && (w.why.Load() == nil) == isAsked {
		b.set(w.Shard, nil)
	}
}

// shard returns which server decides a hit, as far as that is known without asking. It allocates nothing.
func (b *Breaker) shard(h *limiter.Hit) Shard {
	name := limit.StoreName(h)
	if b.o.Servers[name] == nil {
		name = ""
	}
	return Shard{Store: name, Address: b.o.Servers[name].Shard(h.Key)}
}

// Before implements take.Stage. It fails calls to servers that are not asked.
func (b *Breaker) Before(c *take.Call) (answered bool) {
	b.each(c.Hits, func(w *watched) {
		if why := w.why.Load(); why != nil && !answered {
			c.Err, answered = *why, true
		}
	})
	return answered
}

// each calls f for what is watched of the servers that decide the hits.
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

// After implements take.Stage. A failure counts for each server that the error names, unless the caller did not wait
// for the answer. That this process was late says nothing about a server.
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

// isWell notes that a call was answered.
func (b *Breaker) isWell(w *watched) {
	if w != nil && w.why.Load() == nil {
		b.forget(w, true)
	}
}

// blame returns the key of a hit that the shard decides. isKnown is false if none of the hits is decided there: by now
// another shard has it, or, of a server as a whole, hits of several shards share its error.
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

// unanswered watches a server or shard, and has it asked no more if it has been silent for long enough.
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
		err = fmt.Errorf("%w: the last call: %w", ErrNotAsked, err)
		w.why.Store(&err)
		b.opened <- w // never full: it has room for all that are watched
	}
}

// Run probes what is not asked, each by itself, until ctx is done.
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

// reopen has w asked again once a probe is answered.
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
