package redisstore

import (
	"context"
	"fmt"
	"slices"
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

// scannedPlaces is how many places are looked through one by one: up to there that is cheaper than a map.
const scannedPlaces = 16

// split has the parts of a request, in the order of their first hits. of is the store of a hit. A part is of one key, if
// that is wanted.
func split(hits []limiter.Hit, of func(h *limiter.Hit) *Store, byKey bool) []part {
	var parts []part
	var known map[place]int // in parts, of more places than are looked through one by one
	for i := range hits {
		s := of(&hits[i])
		at := place{store: s}
		if s.cluster != nil {
			at.slot = slotOf(s.key(hits[i].Key))
		}
		if byKey {
			at.key = hits[i].Key
		}
		j, found := known[at]
		if known == nil {
			j = slices.IndexFunc(parts, func(p part) bool { return p.place == at })
			found = j >= 0
		}
		if !found {
			j = len(parts)
			parts = append(parts, part{place: at})
			if known == nil && len(parts) > scannedPlaces {
				known = make(map[place]int, len(hits))
				for k := range parts {
					known[parts[k].place] = k
				}
			} else if known != nil {
				known[at] = j
			}
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
	if limiter.Admitted(hits, out) {
		spend(ctx, hits, out, parts)
	} else {
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
	costs := together(hits)
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
			limiter.TellDenied(&hits[j], costs[j], &out[j], &p.call.out[k])
		}
		if c == nil || p.queue.wait(ctx, c) != nil {
			continue
		}
		if c.err == nil {
			for k, d := range c.out[len(c.undo):] {
				j := p.index[c.of[k]]
				limiter.TellDenied(&hits[j], costs[j], &out[j], &d)
			}
		}
		p.queue.free(c)
	}
}

// spend charges the quotas that an admitted request passes although they are over. It is admitted also where that is not
// answered in time.
func spend(ctx context.Context, hits []limiter.Hit, out []limiter.Decision, parts []part) {
	var spends []*call
	var of []*part
	for i := range parts {
		p := &parts[i]
		var c *call
		for k, j := range p.index {
			if !limiter.Spends(&hits[j], out[j].Allowed) {
				continue
			}
			if c == nil {
				c = p.queue.newCall(nil)
				c.slot, c.must = p.slot, true
			}
			c.hits, c.modes, c.of = append(c.hits, hits[j]), append(c.modes, modePay+int64(limiter.ChargeSpend)), append(c.of, k)
		}
		if c != nil {
			spends, of = append(spends, p.queue.start(c)), append(of, p) //nolint:contextcheck // a batch outlives each of its requests
		}
	}
	for i, c := range spends {
		if of[i].queue.wait(ctx, c) != nil {
			continue
		}
		if c.err == nil {
			for k := range c.out {
				limiter.TellSpent(&out[of[i].index[c.of[k]]], &c.out[k])
			}
		}
		of[i].queue.free(c)
	}
}

// together is what each hit and those of the same key before it cost.
func together(hits []limiter.Hit) []int64 {
	slots := make([]limiter.Slot, len(hits))
	limiter.Link(hits, slots)
	costs, asked := make([]int64, len(hits)), make([]int64, len(hits)) // asked is by the first hit of a key
	for i := range hits {
		sum := &asked[slots[i].First()]
		*sum += max(0, hits[i].N)
		costs[i] = *sum
	}
	return costs
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
	counters := tried.counters(due)
	for i := range counters {
		if t := &counters[i]; t.first == i && t.changed && t.open() {
			h := tried.hits[i]
			h.N = t.charged
			c.hits, c.modes, c.undo = append(c.hits, h), append(c.modes, modeUndo), append(c.undo, tried.tried[i])
		}
	}
	for i, h := range tried.hits {
		if counters[counters[i].first].open() {
			charge := due(&tried.hits[i], tried.out[i].Allowed)
			c.hits, c.modes, c.of = append(c.hits, h), append(c.modes, modePay+int64(charge)), append(c.of, i)
		}
	}
	if len(c.hits) == 0 {
		q.free(c)
		return nil
	}
	return q.start(c)
}

// triedCounter is what a call that was tried did to one counter, kept at the index of the counter's first hit.
type triedCounter struct {
	first   int   // the index of the first hit of this hit's key
	changed bool  // the counter is another than it was before
	charged int64 // what it was charged, but for hits that are charged in any case
	settles bool  // it has a hit that is not charged in any case
	pays    bool  // one of these hits is due to pay for its denial
}

// open says whether the counter has anything that is not settled by what was tried.
func (t *triedCounter) open() bool { return t.settles && (t.pays || t.changed || t.charged > 0) }

// counters are the counters of the call's hits; due is what each is charged after all.
func (c *call) counters(due func(h *limiter.Hit, allowed bool) limiter.Charge) []triedCounter {
	slots := make([]limiter.Slot, len(c.hits))
	limiter.Link(c.hits, slots)
	all := make([]triedCounter, len(c.hits))
	for i := range c.hits {
		h := &c.hits[i]
		first := slots[i].First()
		all[i].first = first
		t := &all[first]
		// The script does not see what the module writes.
		cell := h.Policy.Engine() == limiter.EngineRedisCell
		if first == i && !cell {
			t.changed = c.tried[i].before != c.tried[i].after
		}
		if inAnyCase(h) {
			continue
		}
		t.settles = true
		if c.out[i].Allowed {
			t.charged += h.N
		}
		t.pays = t.pays || due(h, c.out[i].Allowed) == limiter.ChargePenalty && h.Policy.ChargeDenied() != limiter.ChargeNone
		t.changed = t.changed || cell && t.charged > 0
	}
	return all
}
