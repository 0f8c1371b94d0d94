package redisstore

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
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

// split returns the participants of a request, in the order of their first hits. With byKey each key is a participant
// of its own.
func (g *Group) split(hits []limiter.Hit, byKey bool) []participant {
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

// takeSplit decides a request of several participants within a time. While a slot is being moved no call may have
// several of its keys: then it tries once more, each key by itself.
func (g *Group) takeSplit(
	ctx context.Context, within time.Duration, hits []limiter.Hit, out []limiter.Decision, byKey bool,
) error {
	own := &timed{ctx, time.Now().Add(within)}
	err := takeSeveral(own, hits, out, g.split(hits, byKey)) //nolint:contextcheck // own is ctx, and until when
	if isMoving(err) && !byKey && time.Now().Before(own.until) {
		err = takeSeveral(own, hits, out, g.split(hits, true)) //nolint:contextcheck // as above
	}
	return err
}

// takeSeveral decides a request with several participants. ctx has the request's deadline.
func takeSeveral(ctx context.Context, hits []limiter.Hit, out []limiter.Decision, all []participant) error {
	for i := range all {
		p := &all[i]
		var err error
		if p.queue, err = p.store.lane(ctx, hits[p.hits[0]].Key); err != nil {
			return p.store.named("", err)
		}
	}
	if err := charge(ctx, hits, out, all); err != nil {
		return err
	}
	switch {
	case limit.ByItself(hits): // all is charged that ever will be
	case limiter.Admitted(hits, out):
		spend(ctx, hits, out, all)
	default:
		deny(ctx, hits, out, all)
	}
	for i := range all {
		all[i].queue.free(all[i].charge)
	}
	return nil
}

// charge is step 1. If a participant fails, the others take back.
func charge(ctx context.Context, hits []limiter.Hit, out []limiter.Decision, all []participant) (failed error) {
	byItself := limit.ByItself(hits)
	for i := range all {
		p := &all[i]
		p.charge, _ = p.queue.newCall(ctx, time.Now(), nil)
		p.charge.scope, p.charge.byItself = p.scope, byItself
		for _, j := range p.hits {
			due := limit.TryCharge(&hits[j])
			if byItself || hits[j].TakenAt != 0 {
				due = chargeByItself(&hits[j])
			}
			p.charge.add(hits[j], due, j)
		}
		p.queue.start(p.charge)
	}
	for i := range all {
		p := &all[i]
		err := p.charge.wait()
		if err != nil {
			p.charge = nil // given up: if it was charged, its queue takes back
		} else if err = p.charge.err; err == nil {
			for k, j := range p.hits {
				out[j] = p.charge.out[k]
			}
		}
		failed = both(failed, p.queue.named(err))
	}
	if failed == nil {
		return nil
	}
	for i := range all {
		if p := &all[i]; p.charge != nil {
			if p.charge.err == nil {
				p.queue.takeBack(p.charge) //nolint:contextcheck // nobody waits for it
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
func deny(ctx context.Context, hits []limiter.Hit, out []limiter.Decision, all []participant) {
	quotaDenies := limiter.QuotaDenies(hits, out)
	for i := range all {
		p := &all[i]
		p.settle = p.queue.settle(ctx, p.charge, quotaDenies)
	}
	costs := together(hits)
	complete := func(j int, d *limiter.Decision) {
		if d.TakenAt = 0; hits[j].Mode == limiter.Shadow { // charged by step 1
			d.TakenAt = out[j].TakenAt
		}
		limit.CompleteDenied(&hits[j], costs[j], &out[j], d)
	}
	for i := range all {
		for k, j := range all[i].hits {
			complete(j, &all[i].charge.out[k])
		}
	}
	awaitSettled(all, complete)
}

// spend is step 2 of an admitted request, if it exceeds quotas.
func spend(ctx context.Context, hits []limiter.Hit, out []limiter.Decision, all []participant) {
	exceeds := false
	for j := range hits {
		exceeds = exceeds || limit.Spends(&hits[j], out[j].Allowed)
	}
	if !exceeds {
		return
	}
	for i := range all {
		p := &all[i]
		c := p.queue.second(ctx, p.charge)
		for _, j := range p.hits {
			if limit.Spends(&hits[j], out[j].Allowed) {
				c.add(hits[j], step.Spend, j)
			}
		}
		p.settle = p.queue.startAny(c)
	}
	awaitSettled(all, func(j int, d *limiter.Decision) { limit.CompleteSpent(&out[j], d) })
}

// awaitSettled calls complete with the answer to each hit in step 2. Without an answer in time the decisions stay
// those of step 1: whether the request is admitted is known.
func awaitSettled(all []participant, complete func(j int, d *limiter.Decision)) {
	for i := range all {
		q, c := all[i].queue, all[i].settle
		if c == nil || c.wait() != nil {
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

// settle sends the call that takes back what step 1 charged, and then charges what a denied request pays. It returns
// nil if there is nothing to do. It reads what remains afterwards for hits that share a changed key.
func (q *queue) settle(ctx context.Context, first *call, quotaDenies bool) *call {
	c := q.second(ctx, first)
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
	return q.startAny(c)
}

// takeBack sends the call that takes back what step 1 charged for a request that came to nothing. Nobody waits for it.
func (q *queue) takeBack(first *call) {
	q.endInFlight(first) // of hits that are charged whatever becomes of the request
	c := q.second(context.Background(), first)
	c.ended.Store(true)
	for i := range first.hits {
		c.takeBack(first, i)
	}
	q.startAny(c)
}

// second returns an empty call for step 2 where first was charged. It is sent even if nobody waits for it.
func (q *queue) second(ctx context.Context, first *call) *call {
	c, _ := q.newCall(ctx, time.Now(), nil)
	c.scope, c.mustSend = first.scope, true
	return c
}

// startAny starts a call of step 2. It returns nil if the call has no hits.
func (q *queue) startAny(c *call) *call {
	if len(c.hits) == 0 {
		q.free(c)
		return nil
	}
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
	if first.byItself || inAnyCase(&h) || !d.Allowed || h.N == 0 {
		return false
	}
	h.N = -h.N
	c.add(h, chargeTakeBack, first.of[i])
	c.until[len(c.until)-1] = first.at + d.ResetAfter.Microseconds()
	return true
}
