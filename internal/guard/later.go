package guard

import (
	"context"
	"errors"
	"sync"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

var (
	_ limiter.Later = (*Leases)(nil)
	_ limiter.Later = (*Denials)(nil)
	_ limiter.Later = (*Breaker)(nil)
)

// takeLater is TakeLater of a store that may be none.
func takeLater(s limiter.Store, hits []limiter.Hit, out []limiter.Decision, w limiter.Waiter) bool {
	later, ok := s.(limiter.Later)
	return ok && later.TakeLater(hits, out, w)
}

// send is Send of a store that may be no limiter.Later.
func send(s limiter.Store) {
	if later, ok := s.(limiter.Later); ok {
		later.Send()
	}
}

// TakeLater implements limiter.Later, for requests that no lease may decide.
func (l *Leases) TakeLater(hits []limiter.Hit, out []limiter.Decision, w limiter.Waiter) bool {
	return !mayLease(hits) && takeLater(l.store, hits, out, w)
}

// Send implements limiter.Later.
func (l *Leases) Send() { send(l.store) }

// denialsWaiter is what Take of Denials does after the store's answer, for a Waiter.
type denialsWaiter struct {
	limiter.Waiter
	denials *Denials
	hits    []limiter.Hit
	out     []limiter.Decision
	now     int64 // when the store was asked, as Denials.learn has it
	era     uint64
	forgets []uint64
}

var denialsWaiters = sync.Pool{New: func() any { return new(denialsWaiter) }}

// TakeLater implements limiter.Later.
func (d *Denials) TakeLater(hits []limiter.Hit, out []limiter.Decision, w limiter.Waiter) bool {
	now, era := d.now(), d.era.Load()
	if era%2 == 1 {
		return takeLater(d.store, hits, out, w)
	}
	if d.answer(now, era, hits, out) {
		d.answered.Add(1)
		limiter.EndWait(w, nil)
		return true
	}
	x, _ := denialsWaiters.Get().(*denialsWaiter) // New makes nothing else
	x.Waiter, x.denials, x.hits, x.out = w, d, hits, out
	x.now, x.era, x.forgets = now, era, d.forgetsOf(hits, x.forgets[:0])
	if takeLater(d.store, hits, out, x) {
		return true
	}
	x.free()
	return false
}

// Send implements limiter.Later.
func (d *Denials) Send() { send(d.store) }

// Taken implements limiter.Waiter.
func (x *denialsWaiter) Taken(err error) {
	x.denials.learn(x.now, x.era, x.forgets, x.hits, x.out, err)
	x.Waiter.Taken(err)
}

// BatchTaken implements limiter.Waiter.
func (x *denialsWaiter) BatchTaken() {
	w := x.Waiter
	x.free()
	w.BatchTaken()
}

func (x *denialsWaiter) free() {
	x.Waiter, x.denials, x.hits, x.out = nil, nil, nil, nil
	denialsWaiters.Put(x)
}

// breakerWaiter is what Take of a Breaker does after the store's answer, for a Waiter.
type breakerWaiter struct {
	limiter.Waiter
	breaker *Breaker
	hits    []limiter.Hit
}

var breakerWaiters = sync.Pool{New: func() any { return new(breakerWaiter) }}

// TakeLater implements limiter.Later.
func (b *Breaker) TakeLater(hits []limiter.Hit, out []limiter.Decision, w limiter.Waiter) bool {
	if why := b.notAsked(hits); why != nil {
		limiter.EndWait(w, *why)
		return true
	}
	x, _ := breakerWaiters.Get().(*breakerWaiter) // New makes nothing else
	x.Waiter, x.breaker, x.hits = w, b, hits
	if takeLater(b.o.Store, hits, out, x) {
		return true
	}
	x.free()
	return false
}

// Send implements limiter.Later.
func (b *Breaker) Send() { send(b.o.Store) }

// Taken implements limiter.Waiter.
func (x *breakerWaiter) Taken(err error) {
	x.breaker.learn(x.hits, err, errors.Is(err, context.Canceled))
	x.Waiter.Taken(err)
}

// BatchTaken implements limiter.Waiter.
func (x *breakerWaiter) BatchTaken() {
	w := x.Waiter
	x.free()
	w.BatchTaken()
}

func (x *breakerWaiter) free() {
	x.Waiter, x.breaker, x.hits = nil, nil, nil
	breakerWaiters.Put(x)
}
