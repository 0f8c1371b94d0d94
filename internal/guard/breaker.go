package guard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

var _ limiter.Store = (*Breaker)(nil)

// ErrNotAsked is wrapped by the errors of a Breaker that is open.
var ErrNotAsked = errors.New("not asked, since it does not answer")

// Of a Breaker.
const (
	// silence is how long nothing may have been answered, though it was asked, before the store is left in peace.
	silence = 50 * time.Millisecond
	// firstPause and longestPause are between probes: each is twice as long as the one before.
	firstPause   = 5 * time.Millisecond
	longestPause = 200 * time.Millisecond
)

// BreakerOptions are a Breaker's parts.
type BreakerOptions struct {
	// Store decides.
	Store limiter.Store
	// Probes ask the servers behind it, by their names (limiter.Policy.Store), for a sign of life. They take no longer
	// than a request may: a server that is too slow for requests is not back.
	Probes map[string]func(ctx context.Context) error
	// Answered says whether an error, of Store or of a probe, is an answer: that of a server which is there, and says no.
	Answered func(err error) bool
}

// Breaker stops asking a server that does not answer: it is open from when nothing has been answered for a while, and
// Take fails at once, without a wait, a goroutine or an allocation. Meanwhile the server is probed, by one call at a
// time, and asked again from the first answer on.
//
// Only silence opens it. A server that answers with errors is asked on: they cost no wait, and may be a request's own.
// Each server of a store that has several is watched by itself.
type Breaker struct {
	o     BreakerOptions
	start time.Time
	first *watched            // the server without a name
	named map[string]*watched // the others
}

// watched is one server.
type watched struct {
	probe  func(ctx context.Context) error
	silent atomic.Int64          // when the first call failed since the latest answer, time since start; 0: none has
	why    atomic.Pointer[error] // what Take returns while it is not asked
	opened chan struct{}         // wakes Run
}

// NewBreaker stands before o.Store. Once open, it closes only while Run runs.
func NewBreaker(o BreakerOptions) *Breaker {
	b := &Breaker{o: o, start: time.Now(), named: make(map[string]*watched)}
	for name, probe := range o.Probes {
		b.named[name] = &watched{probe: probe, opened: make(chan struct{}, 1)}
	}
	b.first = b.named[""]
	delete(b.named, "")
	return b
}

// Open says whether a server is not asked.
func (b *Breaker) Open() bool {
	open := b.first.why.Load() != nil
	for _, w := range b.named {
		open = open || w.why.Load() != nil
	}
	return open
}

// Take implements limiter.Store. A failure of a request that concerns several servers is nobody's.
func (b *Breaker) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	w, others := b.of(hits)
	if why := w.why.Load(); why != nil {
		return *why
	}
	for i := range others {
		if why := b.server(&others[i]).why.Load(); why != nil {
			return *why
		}
	}
	err := b.o.Store.Take(ctx, hits, out)
	switch {
	case len(others) > 0:
	case err == nil || b.o.Answered(err):
		if w.silent.Load() != 0 { // else no core writes what the others read
			w.silent.Store(0)
		}
	case errors.Is(ctx.Err(), context.Canceled):
		// the caller did not wait for the answer
	default:
		w.unanswered(int64(time.Since(b.start))+1, err) // never 0
	}
	return err
}

// of is the first hit's server, and the hits from the first one of another server on.
func (b *Breaker) of(hits []limiter.Hit) (w *watched, others []limiter.Hit) {
	if len(hits) == 0 || len(b.named) == 0 {
		return b.first, nil
	}
	w = b.server(&hits[0])
	for i := range hits {
		if b.server(&hits[i]) != w {
			return w, hits[i:]
		}
	}
	return w, nil
}

func (b *Breaker) server(h *limiter.Hit) *watched {
	if w := b.named[h.Policy.Store()]; w != nil {
		return w
	}
	return b.first
}

// unanswered has the server asked no more if that is so for long enough.
func (w *watched) unanswered(now int64, err error) {
	if w.silent.CompareAndSwap(0, now) || now-w.silent.Load() < int64(silence) {
		return
	}
	err = fmt.Errorf("%w: the last call: %w", ErrNotAsked, err)
	if w.why.CompareAndSwap(nil, &err) {
		w.opened <- struct{}{} // never full: Run takes it before the server is asked again
	}
}

// Run probes each server that is not asked, until ctx is done.
func (b *Breaker) Run(ctx context.Context) {
	var wait sync.WaitGroup
	defer wait.Wait()
	for _, w := range b.named {
		wait.Go(func() { b.watch(ctx, w) })
	}
	b.watch(ctx, b.first)
}

func (b *Breaker) watch(ctx context.Context, w *watched) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.opened:
		}
		for pause := firstPause; !b.answers(ctx, w); pause = min(2*pause, longestPause) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
		}
		w.silent.Store(0)
		w.why.Store(nil)
	}
}

func (b *Breaker) answers(ctx context.Context, w *watched) bool {
	err := w.probe(ctx)
	return err == nil || b.o.Answered(err)
}
