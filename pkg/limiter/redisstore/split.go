package redisstore

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// A request whose hits lie in several scopes is decided in two steps.
//
//  1. Charge: all of them are asked at the same time, and charge each hit that fits (limit.TryCharge).
//  2. Settle, if the request is denied: each takes back what it charged, and charges what a denied request pays
//     (limit.DeniedCharge). An admitted request only pays for the quotas that it exceeds (limit.Spends).
//
// If one of them fails in step 1, the others take back as well. What cannot be taken back, because its server does not
// answer or this process ends, stays charged.
//
// Between the steps other requests find the charge. It is taken back as a negative hit is, so hits of others that came
// between the steps may count as if they had come with step 1. docs/adr/0050 says what that is worth in each
// algorithm.

// modeCharge and above are the modes of hits in these steps: the hit is charged mode - modeCharge; see lua/call.lua.
const modeCharge = 8

// The charges of the script beside the values of step.Charge.
const (
	chargeQuota            = step.Spend + 1 + iota // of a quota hit by itself: ChargeIfFits, else ChargeSpend
	chargeTakeBack                                 // of a negative hit: takes back one of step 1, or Hit.TakenAt
	chargeTakeBackOrOldest                         // the same, with Hit.OrOldest
)

// scope is what one script call can decide: the hits in a store; in a cluster those in one slot; behind a proxy, and in
// a slot that is being moved, those of one key.
type scope struct {
	store *Store
	slot  uint16
	key   string
}

// scopeOf returns the scope of a counter.
func (s *Store) scopeOf(key string) scope {
	at := scope{store: s}
	if s.cluster != nil {
		at.slot = slotOf(s.keyInSlot(key))
	} else if s.o.Proxy {
		at.key = key
	}
	return at
}

// participant is the hits of a request in one scope.
type participant struct {
	scope
	queue  *queue
	hits   []int // indexes in the request
	charge *call // step 1
	settle *call // step 2, nil where there is nothing to do
}

// split is a request of several participants.
type split struct {
	*storekit.Call

	until time.Time // for all of its calls
	all   []participant
}

// participants are those of a request, in the order of their first hits. With byKey each key is a participant of its
// own.
func (g *Group) participants(hits []limiter.Hit, byKey bool) []participant {
	all := make([]participant, 0, len(hits))
	var scopes index[scope]
	for i := range hits {
		at := g.of(&hits[i]).scopeOf(hits[i].Key)
		if byKey {
			at.key = hits[i].Key
		}
		j, isNew := scopes.number(at)
		if isNew {
			all = append(all, participant{scope: at})
		}
		all[j].hits = append(all[j].hits, i)
	}
	return all
}

// takeSplit decides a request of several participants that waits since a time. While a slot is being moved no call may
// have several of its keys: then it tries once more, each key by itself.
func (g *Group) takeSplit(c *storekit.Call, since time.Time, byKey bool) error {
	r := &split{Call: c, until: since.Add(g.first.o.Timeout), all: g.participants(c.Hits, byKey)}
	err := r.take()
	if isMoving(err) && !byKey && time.Now().Before(r.until) {
		r.all = g.participants(c.Hits, true)
		err = r.take()
	}
	return err
}

func (r *split) take() error {
	for i := range r.all {
		p := &r.all[i]
		var err error
		if p.queue, err = p.store.lane(r.Ctx, r.Hits[p.hits[0]].Key); err != nil {
			return p.store.named("", err)
		}
	}
	if err := r.charge(); err != nil {
		return err
	}
	switch {
	case limit.ByItself(r.Hits): // all is charged that ever will be
	case limiter.Admitted(r.Hits, r.Out):
		r.spend()
	default:
		r.deny()
	}
	for i := range r.all {
		r.all[i].queue.free(r.all[i].charge)
	}
	return nil
}

// charge is step 1. If a participant fails, the others refund.
func (r *split) charge() (failed error) {
	byItself := limit.ByItself(r.Hits)
	for i := range r.all {
		p := &r.all[i]
		p.charge = p.queue.newCall(r.Ctx, time.Now(), r.until)
		p.charge.scope, p.charge.byItself = p.scope, byItself
		for _, j := range p.hits {
			due := limit.TryCharge(&r.Hits[j])
			if byItself || r.Hits[j].TakenAt != 0 {
				due = chargeByItself(&r.Hits[j])
			}
			p.charge.add(r.Hits[j], due, j)
		}
		p.queue.start(p.charge)
	}
	for i := range r.all {
		p := &r.all[i]
		err := <-p.charge.done
		if err != nil {
			p.charge = nil // given up: if it was charged, its queue refunds it
		} else if err = p.charge.err; err == nil {
			for k, j := range p.hits {
				r.Out[j] = p.charge.out[k]
			}
		}
		failed = both(failed, p.store.named(p.queue.shard, err))
	}
	if failed == nil {
		return nil
	}
	for i := range r.all {
		if p := &r.all[i]; p.charge != nil {
			if p.charge.err == nil {
				p.queue.refund(p.charge)
			}
			p.queue.free(p.charge)
		}
	}
	return failed
}

// both joins the errors of two participants, in one line.
func both(a, b error) error {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return fmt.Errorf("%w; %w", a, b)
}

// deny is step 2 of a denied request.
func (r *split) deny() {
	quotaDenies := limiter.QuotaDenies(r.Hits, r.Out)
	for i := range r.all {
		p := &r.all[i]
		p.settle = p.queue.settle(p.queue.newCall(r.Ctx, time.Now(), r.until), p.charge, quotaDenies)
	}
	costs := together(r.Hits)
	complete := func(j int, d *limiter.Decision) {
		if d.TakenAt = 0; r.Hits[j].Mode == limiter.Shadow { // charged by step 1
			d.TakenAt = r.Out[j].TakenAt
		}
		limit.CompleteDenied(&r.Hits[j], costs[j], &r.Out[j], d)
	}
	for i := range r.all {
		for k, j := range r.all[i].hits {
			complete(j, &r.all[i].charge.out[k])
		}
	}
	awaitSettled(r.all, complete)
}

// spend is step 2 of an admitted request, if it exceeds quotas.
func (r *split) spend() {
	for i := range r.all {
		p := &r.all[i]
		c := p.queue.newCall(r.Ctx, time.Now(), r.until)
		for _, j := range p.hits {
			if limit.Spends(&r.Hits[j], r.Out[j].Allowed) {
				c.add(r.Hits[j], step.Spend, j)
			}
		}
		p.settle = p.queue.startSecond(c, p.charge)
	}
	awaitSettled(r.all, func(j int, d *limiter.Decision) { limit.CompleteSpent(&r.Out[j], d) })
}

// awaitSettled calls complete with the answer to each hit in step 2. Without an answer in time the decisions stay
// those of step 1: whether the request is admitted is known.
func awaitSettled(all []participant, complete func(j int, d *limiter.Decision)) {
	for i := range all {
		q, c := all[i].queue, all[i].settle
		if c == nil || <-c.done != nil {
			continue
		}
		if c.err == nil {
			for k, j := range c.of {
				complete(j, &c.out[k])
			}
		}
		q.free(c)
	}
}

// together is for each hit the cost of the request's hits of the same key, up to this one.
func together(hits []limiter.Hit) []int64 {
	costs, sums := make([]int64, len(hits)), make([]int64, len(hits)) // sums is by the number of a key
	var keys index[string]
	for i := range hits {
		key, _ := keys.number(hits[i].Key)
		sums[key] += max(0, hits[i].N)
		costs[i] = sums[key]
	}
	return costs
}

// settle sends c, which takes back what step 1 charged, and then charges what a denied request pays. It returns
// nil if there is nothing to do. It reads what remains afterwards for hits that share a changed key.
func (q *queue) settle(c, first *call, quotaDenies bool) *call {
	changed, shared := make([]bool, len(first.hits)), make([]bool, len(first.hits)) // by the number of a key
	due := make([]step.Charge, len(first.hits))
	var keys index[string]
	for i := range first.hits {
		h := &first.hits[i]
		key, isNew := keys.number(h.Key)
		due[i] = step.Nothing
		if !inAnyCase(h) {
			due[i] = limit.DeniedCharge(h, first.out[i].Allowed, quotaDenies)
		}
		pays := due[i] == step.Penalty && h.Policy.Params().ChargeDenied != limiter.ChargeNone
		changed[key] = c.takeBack(first, i) || pays || changed[key]
		shared[key] = shared[key] || pays || !isNew
	}
	for i := range first.hits {
		if key, _ := keys.number(first.hits[i].Key); changed[key] && shared[key] {
			c.add(first.hits[i], due[i], first.of[i])
		}
	}
	return q.startSecond(c, first)
}

// refund refunds what a call charged for a request that came to nothing, or did not wait for the answer, and so will
// never report the end of what counts as in flight. It does not wait for the store.
func (q *queue) refund(first *call) {
	now := time.Now()
	c := q.newCall(context.Background(), now, now.Add(q.timeout))
	c.ended.Store(true)
	isPart := first.modes != nil && !first.byItself // of a request that is charged as a whole
	var owed []limiter.Hit
	if !isPart {
		owed = limit.Owes(nil, first.hits, first.out)
	}
	for i := range first.hits {
		if isPart && !c.takeBack(first, i) && first.hits[i].Mode == limiter.Shadow {
			owed = limit.Owes(owed, first.hits[i:i+1], first.out[i:i+1])
		}
	}
	for i := range owed {
		c.add(owed[i], chargeByItself(&owed[i]), 0)
	}
	q.startSecond(c, first)
}

// startSecond starts a call of step 2 where first was charged. It is sent even if nobody waits for it. It returns nil
// if the call has no hits.
func (q *queue) startSecond(c, first *call) *call {
	if len(c.hits) == 0 {
		q.free(c)
		return nil
	}
	c.scope, c.mustSend = first.scope, true
	return q.start(c)
}

// inAnyCase reports whether a hit is charged whatever becomes of its request.
func inAnyCase(h *limiter.Hit) bool { return h.Mode == limiter.Shadow || h.N < 0 }

// chargeByItself is what a hit is charged that is charged by itself.
func chargeByItself(h *limiter.Hit) step.Charge {
	switch {
	case h.TakenAt != 0 && h.OrOldest:
		return chargeTakeBackOrOldest
	case h.TakenAt != 0:
		return chargeTakeBack
	case h.Mode == limiter.Quota:
		return chargeQuota
	default:
		return step.OrPenalty
	}
}

// add adds a hit that is charged so. of is its index in the request.
func (c *call) add(h limiter.Hit, charge step.Charge, of int) {
	c.hits, c.modes, c.of = append(c.hits, h), append(c.modes, modeCharge+int64(charge)), append(c.of, of)
	c.until = append(c.until, 0)
}

// takeBack adds what takes back the charge of hit i of step 1, and reports whether there is such a charge.
func (c *call) takeBack(first *call, i int) bool {
	h, d := first.hits[i], &first.out[i]
	if inAnyCase(&h) || !d.Allowed || h.N == 0 {
		return false
	}
	h.N = -h.N
	c.add(h, chargeTakeBack, first.of[i])
	c.until[len(c.until)-1] = first.at + d.ResetAfter.Microseconds()
	return true
}
