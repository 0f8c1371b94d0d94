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

// A request whose hits are in several scopes is decided in two steps.
//
//  1. Charge: every scope is called at the same time, and charges each hit that fits (limit.TryCharge).
//  2. Settle: if the request is denied, each scope takes back its charge, and charges what a denied request pays
//     (limit.DeniedCharge). If the request is admitted, it only pays for the quotas that it exceeds (limit.Spends).
//
// If a scope fails in step 1, the other scopes also take back their charges. A charge stays if the scope's server does
// not reply or this process ends before step 2.
//
// Between the two steps, the charge counts against other requests. A negative hit takes the charge back, so hits of
// other requests between the steps may count as if they had come with step 1. docs/adr/0050 has the effects.

// modeCharge is added to the charge of a hit in these steps, and the sum is the hit's mode; see lua/call.lua.
const modeCharge = 8

// Charges of the script in addition to the values of step.Charge.
const (
	chargeQuota            = step.Spend + 1 + iota // independent quota hit: step.IfFits if the hit fits, else step.Spend
	chargeTakeBack                                 // negative hit: takes back the charge of step 1, or of Hit.TakenAt
	chargeTakeBackOrOldest                         // chargeTakeBack with Hit.OrOldest
)

// scope identifies the hits that one script call can decide: the hits in one store or, in a cluster, in one slot. In a
// slot that is being moved, and behind a proxy, a call can decide only the hits of one key.
type scope struct {
	store *Store
	slot  uint16
	key   string
}

func (s *Store) scopeOf(key string) scope {
	at := scope{store: s}
	if s.cluster != nil {
		at.slot = slotOf(s.keyInSlot(key))
	} else if s.o.Proxy {
		at.key = key
	}
	return at
}

// participant holds the hits of a request in one scope.
type participant struct {
	scope
	queue  *queue
	hits   []int // indexes in the request
	charge *call // call of step 1
	settle *call // call of step 2; nil if step 2 is not needed here
}

// split is a request with several participants.
type split struct {
	*storekit.Call

	until time.Time // deadline of its calls; each call also has the timeout of its own store
	all   []participant
}

// participants returns the participants of a request, in the order of their first hits: with byKey one for each key.
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

// takeSplit decides a request with several participants, which has waited since the given time. If a slot is being
// moved, so that no call may have several of the slot's keys, it tries again with a participant for each key.
func (g *Group) takeSplit(c *storekit.Call, since time.Time, byKey bool) error {
	r := &split{Call: c, all: g.participants(c.Hits, byKey)}
	for i := range r.all { // the longest timeout of its stores
		if until := since.Add(r.all[i].store.o.Timeout); until.After(r.until) {
			r.until = until
		}
	}
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
	case limit.ByItself(r.Hits): // step 1 has charged everything
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

// charge runs step 1. If a participant fails, the other participants refund their charges.
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
			p.charge = nil // the call was given up: its queue refunds what Redis charges
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

// both joins two errors in one line. Either may be nil.
func both(a, b error) error {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return fmt.Errorf("%w; %w", a, b)
}

// deny runs step 2 of a denied request.
func (r *split) deny() {
	quotaDenies := limiter.QuotaDenies(r.Hits, r.Out)
	for i := range r.all {
		p := &r.all[i]
		p.settle = p.queue.settle(p.queue.newCall(r.Ctx, time.Now(), r.until), p.charge, quotaDenies)
	}
	costs := together(r.Hits)
	complete := func(j int, d *limiter.Decision) {
		if d.TakenAt = 0; r.Hits[j].Mode == limiter.Shadow { // its charge of step 1 stays
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

// spend runs step 2 of an admitted request: it charges the quotas that the request exceeds.
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

// awaitSettled calls complete with the decision of step 2 on each hit. If step 2 has no reply in time, the decisions
// of step 1 stay: they suffice to know whether the request is admitted.
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

// together returns for each hit the total cost of the request's hits with the same key, up to and including this hit.
func together(hits []limiter.Hit) []int64 {
	costs, sums := make([]int64, len(hits)), make([]int64, len(hits)) // the index of sums is the number of a key
	var keys index[string]
	for i := range hits {
		key, _ := keys.number(hits[i].Key)
		sums[key] += max(0, hits[i].N)
		costs[i] = sums[key]
	}
	return costs
}

// settle sends c, which takes back the charge of step 1, and then charges what a denied request pays. If several hits
// share a changed key, c also reads what remains for each of them. settle returns nil if there is nothing to do.
func (q *queue) settle(c, first *call, quotaDenies bool) *call {
	changed, shared := make([]bool, len(first.hits)), make([]bool, len(first.hits)) // the index is the number of a key
	due := make([]step.Charge, len(first.hits))
	var keys index[string]
	for i := range first.hits {
		h := &first.hits[i]
		key, isNew := keys.number(h.Key)
		due[i] = step.Nothing
		if !alwaysCharged(h) {
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

// refund refunds the charge of a call whose request failed or gave up, and so will not report its end (see limit.Owes).
// It does not wait for the store.
func (q *queue) refund(first *call) {
	now := time.Now()
	c := q.newCall(context.Background(), now, now.Add(q.timeout))
	c.ended.Store(true)
	isPart := first.modes != nil && !first.byItself // the request is charged as a whole, in several scopes
	var owed []limiter.Hit
	if !isPart {
		owed = limit.Owes(nil, first.hits, first.out, true)
	}
	for i := range first.hits {
		if isPart && !c.takeBack(first, i) && first.hits[i].Mode == limiter.Shadow {
			owed = limit.Owes(owed, first.hits[i:i+1], first.out[i:i+1], true)
		}
	}
	for i := range owed {
		c.add(owed[i], chargeByItself(&owed[i]), 0)
	}
	q.startSecond(c, first)
}

// startSecond starts c, a call of step 2, in the scope of first, a call of step 1. It sends c even if the request was
// cancelled. If c has no hits, startSecond returns nil.
func (q *queue) startSecond(c, first *call) *call {
	if len(c.hits) == 0 {
		q.free(c)
		return nil
	}
	c.scope, c.mustSend = first.scope, true
	return q.start(c)
}

// alwaysCharged reports whether a hit is charged independently of the request's decision.
func alwaysCharged(h *limiter.Hit) bool { return h.Mode == limiter.Shadow || h.N < 0 }

// chargeByItself returns the charge of a hit that is charged independently of the request's other hits.
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

// add adds a hit with the given charge. of is the hit's index in the request.
func (c *call) add(h limiter.Hit, charge step.Charge, of int) {
	c.hits, c.modes, c.of = append(c.hits, h), append(c.modes, modeCharge+int64(charge)), append(c.of, of)
	c.until = append(c.until, 0)
}

// takeBack adds a hit that takes back the charge of hit i of first, and reports whether there is such a charge.
func (c *call) takeBack(first *call, i int) bool {
	h, d := first.hits[i], &first.out[i]
	if alwaysCharged(&h) || !d.Allowed || h.N == 0 {
		return false
	}
	h.N = -h.N
	c.add(h, chargeTakeBack, first.of[i])
	c.until[len(c.until)-1] = first.at + d.ResetAfter.Microseconds()
	return true
}
