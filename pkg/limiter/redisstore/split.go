package redisstore

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// A request whose hits lie in several places, slots of a cluster or stores, is decided in two steps: see
// limiter.TryCharge. First all places are asked at once, and charge what fits. If all of it does, that was it. Else, or
// if one place does not answer, what was charged is undone in all of them.
//
// A charge that cannot be undone, because its place no longer answers or this process ends, stays: a counter may hold a
// hit that nobody was admitted for, and never misses one of somebody who was.

// Modes of hits in lua/frame.lua, beside those of limiter: pay and try are added to what is to be charged.
const (
	modePay  = 8
	modeTry  = 16
	modeUndo = 32
)

// place is where hits can be decided in one step.
type place struct {
	store *Store
	slot  uint16 // of a cluster
	key   string // if it is of one key only
}

// part is the hits of a request in one place.
type part struct {
	place
	queue *queue
	index []int // of the hits, in the request
	call  *call // that tries them
}

// split has the parts of a request, in the order of their first hits. of is the store of a hit. A part is of one key, if
// that is wanted.
func split(hits []limiter.Hit, of func(h *limiter.Hit) *Store, byKey bool) []part {
	var parts []part
	for i := range hits {
		s := of(&hits[i])
		at := place{store: s}
		if s.cluster != nil {
			at.slot = slotOf(s.key(hits[i].Key))
		}
		if byKey {
			at.key = hits[i].Key
		}
		j := 0
		for j < len(parts) && parts[j].place != at {
			j++
		}
		if j == len(parts) {
			parts = append(parts, part{place: at})
		}
		parts[j].index = append(parts[j].index, i)
	}
	return parts
}

// takeSplit decides a request in a cluster.
func (s *Store) takeSplit(ctx context.Context, hits []limiter.Hit, out []limiter.Decision, byKey bool) error {
	if len(hits) > 1 {
		parts := split(hits, func(*limiter.Hit) *Store { return s }, byKey)
		if len(parts) > 1 {
			ctx, cancel := context.WithTimeout(ctx, s.timeout)
			defer cancel()
			return takeParts(ctx, hits, out, parts)
		}
	}
	key, start := s.key(hits[0].Key), time.Now()
	queue, err := s.lane(ctx, key)
	if err != nil {
		return err
	}
	if asked := time.Since(start); asked > s.timeout/8 { // it had to be found out who has the slot
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.timeout-asked)
		defer cancel()
	}
	return queue.named(queue.take(ctx, slotOf(key), hits, out))
}

// takeParts decides a request in several places. ctx has the request's deadline.
func takeParts(ctx context.Context, hits []limiter.Hit, out []limiter.Decision, parts []part) error {
	for i := range parts {
		p := &parts[i]
		var err error
		if p.queue, err = p.store.lane(ctx, p.store.key(hits[p.index[0]].Key)); err != nil {
			return p.store.named("", err)
		}
	}
	if err := try(ctx, hits, out, parts); err != nil {
		return err
	}
	if !limiter.Admitted(hits, out) {
		deny(ctx, hits, out, parts)
	}
	for i := range parts {
		parts[i].queue.free(parts[i].call)
	}
	return nil
}

// try charges what fits, everywhere at once. If one place fails, the others give back.
func try(ctx context.Context, hits []limiter.Hit, out []limiter.Decision, parts []part) (failed error) {
	for i := range parts {
		p := &parts[i]
		c := p.queue.newCall(nil)
		c.slot, c.try = p.slot, true
		for _, j := range p.index {
			c.hits = append(c.hits, hits[j])
			c.modes = append(c.modes, modeTry+int64(limiter.TryCharge(&hits[j])))
		}
		p.call = p.queue.start(c) //nolint:contextcheck // a batch outlives each of its requests
	}
	for i := range parts {
		p := &parts[i]
		err := p.queue.wait(ctx, p.call)
		if err != nil {
			p.call = nil // given up: if it was charged, its queue gives back
		} else if err = p.call.err; err == nil {
			for k, j := range p.index {
				out[j] = p.call.out[k]
			}
		}
		failed = both(failed, p.queue.named(err))
	}
	if failed == nil {
		return nil
	}
	for i := range parts {
		if p := &parts[i]; p.call != nil {
			if p.call.err == nil {
				p.queue.giveBack(p.call)
			}
			p.queue.free(p.call)
		}
	}
	return failed
}

// both joins the errors of two places, in one line.
func both(a, b error) error {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return fmt.Errorf("%w; %w", a, b)
}

// deny undoes what was tried, and charges what a denied request is charged. Where that is not answered in time, the
// decisions stay those of the first step: that the request is denied is known.
func deny(ctx context.Context, hits []limiter.Hit, out []limiter.Decision, parts []part) {
	quotaDenies := limiter.QuotaDenies(hits, out)
	pay := make([]*call, len(parts))
	for i := range parts {
		p := &parts[i]
		pay[i] = p.queue.settle(p.call, func(h *limiter.Hit, allowed bool) limiter.Charge {
			return limiter.DeniedCharge(h, allowed, quotaDenies)
		})
	}
	for i := range parts {
		p, c := &parts[i], pay[i]
		for k, j := range p.index {
			limiter.TellDenied(hits, j, out, &p.call.out[k])
		}
		if c == nil || p.queue.wait(ctx, c) != nil {
			continue
		}
		if c.err == nil {
			for k, d := range c.out[len(c.undo):] {
				limiter.TellDenied(hits, p.index[c.of[k]], out, &d)
			}
		}
		p.queue.free(c)
	}
}

// giveBack undoes what a call of a request tried that came to nothing. Nobody waits for that.
func (q *queue) giveBack(tried *call) {
	c := q.settle(tried, func(h *limiter.Hit, _ bool) limiter.Charge {
		if inAnyCase(h) {
			return limiter.ChargeOrPenalty
		}
		return limiter.ChargeNothing
	})
	if c != nil && !c.left.CompareAndSwap(false, true) {
		<-c.done
		q.free(c)
	}
}

// inAnyCase says that a hit is charged whatever becomes of its request.
func inAnyCase(h *limiter.Hit) bool { return h.Mode == limiter.Shadow || h.N < 0 }

// settle sends the call that undoes what a call tried, and then charges each hit what is due. Nil: there is nothing to
// do. It is sent even if nobody waits for it.
func (q *queue) settle(tried *call, due func(h *limiter.Hit, allowed bool) limiter.Charge) *call {
	c := q.newCall(nil)
	c.slot, c.must = tried.slot, true
	charges := make([]limiter.Charge, len(tried.hits))
	for i := range tried.hits {
		charges[i] = due(&tried.hits[i], tried.out[i].Allowed)
	}
	for i := range tried.hits {
		if limiter.First(tried.hits, i) == i && tried.changed(i) && tried.open(i, charges) {
			h := tried.hits[i]
			h.N = tried.charged(i)
			c.hits, c.modes, c.undo = append(c.hits, h), append(c.modes, modeUndo), append(c.undo, tried.tried[i])
		}
	}
	for i, h := range tried.hits {
		if tried.open(i, charges) {
			c.hits, c.modes, c.of = append(c.hits, h), append(c.modes, modePay+int64(charges[i])), append(c.of, i)
		}
	}
	if len(c.hits) == 0 {
		q.free(c)
		return nil
	}
	return q.start(c)
}

// open says whether the counter of hit i has anything that is not settled by what was tried.
func (c *call) open(i int, charges []limiter.Charge) bool {
	for j := range c.hits {
		h := &c.hits[j]
		if h.Key != c.hits[i].Key || inAnyCase(h) {
			continue
		}
		pays := charges[j] == limiter.ChargePenalty && h.Policy.ChargeDenied() != limiter.ChargeNone
		if pays || c.changed(i) || c.charged(i) > 0 {
			return true
		}
	}
	return false
}

// changed says whether the counter of hit i was.
func (c *call) changed(i int) bool {
	if c.hits[i].Policy.Engine() == limiter.EngineRedisCell { // the script does not see what the module writes
		return c.charged(i) > 0
	}
	return c.tried[i].before != c.tried[i].after
}

// charged is what the counter of hit i was charged, but for hits that are charged in any case.
func (c *call) charged(i int) (n int64) {
	for j := range c.hits {
		if h := &c.hits[j]; h.Key == c.hits[i].Key && !inAnyCase(h) && c.out[j].Allowed {
			n += h.N
		}
	}
	return n
}
