package rlqs

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

const (
	// pushEvery is the shortest time between two responses to a stream that it did not ask for by a report, but for lower
	// shares because a counter has not enough.
	pushEvery = time.Second
	// recoverEvery is the same for shares that rise again after that.
	recoverEvery = 2 * tick
	// moved is how much of a divided total has to change for the shares to be divided again.
	moved = 0.02
)

// step does what is due, and returns when to come again.
func (k *Keeper) step(ctx context.Context) (next time.Duration) {
	now := k.now()
	k.resolve(now)

	k.mu.Lock()
	k.look(now)
	due := k.dueGroups(now)
	k.divideAll(due, now)
	asks := k.plan(due, now)
	shadows, sums := k.askShadows(now), k.askSums(due, now)
	k.mu.Unlock()

	k.take(ctx, slices.Concat(asks, shadows, sums))

	k.mu.Lock()
	now = k.now()
	for _, a := range sums {
		a.sum.learn(a, now)
	}
	for _, a := range asks {
		k.settle(a, now)
	}
	out := k.collect()
	decided := k.takeReported(shadows)
	next = k.next(now)
	k.mu.Unlock()

	for i := range out {
		out[i].to.Send(out[i].assignments)
	}
	k.observe(decided)
	return next
}

// look ends what has ended, and answers reports of buckets that nothing is charged for.
func (k *Keeper) look(now time.Duration) {
	k.eachClient(func(c *client) {
		switch {
		case c.isStale:
		case c.isBroken():
			if !c.isAssigned(now) {
				k.drop(c)
			}
		case c.idle >= idleReports, c.refused != "" && c.isSent:
			if c.group != nil {
				c.account(now)
				c.refund(c.float+c.burst, now-c.reported)
			}
			k.stats.Abandoned++
			c.stream.outbox = append(c.stream.outbox, Assignment{ID: c.id, Strategy: Abandon})
			k.drop(c)
		case c.refused != "":
			c.isUrgent, c.reply = false, false
		case c.group == nil && (c.reply || c.isUrgent || c.isLate(now, k.o.TTL)):
			c.rate, c.burst = 0, 0
			k.send(c, Assignment{Strategy: c.fixed, TTL: k.o.TTL}, now)
		}
	})
}

// isLate reports whether the client's assignment has to be sent again without a report, since reports come less often
// than every few seconds.
func (c *client) isLate(now, ttl time.Duration) bool {
	return c.isSent && c.expires-now < ttl/2 && now-c.reported <= c.every*3/2
}

// dueGroups returns the groups whose tick it is, and those that do not wait for one.
func (k *Keeper) dueGroups(now time.Duration) (due []*group) {
	for _, g := range k.groups {
		for _, ct := range g.counters {
			if ct.open(now) {
				g.retryAt, g.urgent = 0, true
			}
		}
		if now >= g.due {
			g.due = g.cadence.next(now)
		} else if !g.urgent {
			continue
		}
		g.urgent = false
		due = append(due, g)
	}
	return due
}

// next is when the next step is due.
func (k *Keeper) next(now time.Duration) time.Duration {
	next := now.Truncate(tick) + tick
	for _, g := range k.groups {
		next = min(next, g.due)
		for _, ct := range g.counters {
			if ct.ends > now {
				next = min(next, ct.ends)
			}
		}
	}
	return max(next, now+betweenSteps)
}

// divideAll divides the shares of the counters where something changed, and of those that have clients in common with
// them.
func (k *Keeper) divideAll(due []*group, now time.Duration) {
	var dirty []*counter
	add := func(ct *counter) {
		if !ct.isListed {
			ct.isListed = true
			dirty = append(dirty, ct)
		}
	}
	for _, g := range due {
		for _, ct := range g.counters {
			if !ct.dirty && ct.lookedAt == now { // for another group
				continue
			}
			ct.lookedAt = now
			if ct.dirty || math.Abs(ct.divisible(ct.wanted(), now)-ct.total) > moved*ct.total {
				add(ct)
			}
		}
	}
	isMixed := false
	for i := 0; i < len(dirty); i++ { //nolint:intrange // it grows
		for _, g := range dirty[i].groups {
			isMixed = isMixed || len(g.counters) > 1
			for _, beside := range g.counters {
				add(beside)
			}
		}
	}
	divideEach(dirty, now, false)
	if isMixed { // what a client cannot have of one counter the others need not keep for it
		divideEach(dirty, now, true)
	}
	for _, ct := range dirty {
		ct.isListed, ct.dirty = false, false
	}
}

// divideEach divides the shares of counters: a client has the least of its shares. isSecond says that they were divided
// before, so that it is known which counter gives a client least.
func divideEach(all []*counter, now time.Duration, isSecond bool) {
	given := make([][]float64, len(all))
	for i, ct := range all {
		given[i] = ct.divide(now, isSecond)
	}
	for _, ct := range all {
		for c := range ct.clients() {
			c.share, c.burstGoal = math.Inf(1), math.Inf(1)
			if !isSecond {
				c.limitedBy = nil
			}
		}
	}
	for i, ct := range all {
		ct.give(given[i])
	}
}

// wanted is what all clients of the counter want, in requests a second.
func (ct *counter) wanted() (sum float64) {
	for c := range ct.clients() {
		sum += c.want
	}
	return sum
}

// divide returns the shares of the counter's clients, in their order.
func (ct *counter) divide(now time.Duration, isSecond bool) []float64 {
	var wants []float64
	wanted, fixed := 0.0, 0.0
	for c := range ct.clients() {
		want := c.want
		if isSecond && c.limitedBy != ct {
			want = min(want, c.share)
		}
		if c.isBroken() { // it keeps what it has
			fixed += c.rate
			want = 0
		}
		wanted += want
		wants = append(wants, want)
	}
	total := ct.divisible(ct.wanted(), now)
	if !isSecond {
		ct.total = total
	} else {
		total = ct.divisible(wanted, now)
	}
	return divide(wants, max(0, total-fixed))
}

// give has the counter's clients have the shares that divide returned.
func (ct *counter) give(shares []float64) {
	sum := 0.0
	for _, s := range shares {
		sum += s
	}
	i := 0
	for c := range ct.clients() {
		s := shares[i]
		i++
		if c.limitedBy == nil || s < c.share {
			c.limitedBy, c.share = ct, s
		}
		c.burstGoal = min(c.burstGoal, s, float64(ct.policy.Capacity())/burstPart*s/max(sum, s, 1e-9))
	}
}

// ask is what a group charges in one step.
type ask struct {
	group   *group
	hits    []limiter.Hit // of the group, with N unset
	clients []*client
	at      time.Duration
	n, back int64

	keep, owe, more float64 // sums of the clients' plans

	got     int64
	first   []limiter.Decision // the answer to n
	last    []limiter.Decision // the newest answer
	failure error
	sent    time.Duration // when n was

	shadow  counted // of an ask without a group: the limit, in shadow mode
	isFirst bool    // of its bucket

	sum *sum // of an ask that adds to one
}

// plan makes what the groups charge.
func (k *Keeper) plan(due []*group, now time.Duration) (asks []*ask) {
	sumBursts(due)
	for _, g := range due {
		a := &ask{group: g, hits: slices.Clone(g.hits), clients: slices.Clone(g.clients), at: now, back: g.takeBack(now)}
		if len(a.clients) == 0 && g.back < 1 {
			k.forget(g)
		}
		long := g.cadence.long
		for _, c := range a.clients {
			c.account(now)
			room := g.burstRoom()
			c.makePlan(long, room, now)
			for _, ct := range g.counters {
				ct.bursts += max(0, c.plan.burst-c.burst)
			}
			a.keep += c.plan.keep
			a.owe += c.plan.owe
			a.more += c.plan.more
		}
		if now >= g.retryAt {
			a.n = int64(min(math.Ceil(a.keep+a.owe+a.more-littleHit), g.capacity()))
		}
		asks = append(asks, a)
	}
	return asks
}

// sumBursts sums the bursts of all clients of the counters of groups.
func sumBursts(groups []*group) {
	for _, g := range groups {
		for _, ct := range g.counters {
			ct.bursts = -1
		}
	}
	for _, g := range groups {
		for _, ct := range g.counters {
			if ct.bursts >= 0 { // for another group
				continue
			}
			ct.bursts = 0
			for c := range ct.clients() {
				ct.bursts += c.burst
			}
		}
	}
}

// takeBack returns how many hits to return to the group's windows.
func (g *group) takeBack(now time.Duration) (n int64) {
	if g.back < 1 {
		return 0
	}
	if ends := g.windowEnds(); g.backOf != g.window() || ends > 0 && now+windowMargin > ends {
		g.back = 0
		return 0
	}
	n = clampHits(g.back)
	g.back -= float64(n)
	return n
}

// settle divides what was charged among the clients of a group, and assigns them what it suffices for.
func (k *Keeper) settle(a *ask, now time.Duration) {
	g := a.group
	if a.failure != nil {
		k.stats.Failures++
		g.isFailing = true
		k.assignByPolicy(a, now)
		return
	}
	if a.first != nil {
		g.isFailing = false
		k.learn(a, now)
	}
	k.stats.Charged += uint64(a.got)   //nolint:gosec // not below 0
	k.stats.Returned += uint64(a.back) //nolint:gosec // not below 0
	rest := float64(a.got)
	part := func(of float64) float64 { // of a sum that is paid
		if of <= 0 {
			return 0
		}
		paid := min(rest, of)
		rest -= paid
		return paid / of
	}
	keep, owe, more := part(a.keep), part(a.owe), part(a.more)
	long := g.cadence.long
	for _, c := range a.clients {
		if c.isGone || c.group != g {
			continue
		}
		n := c.plan.keep*keep + c.plan.more*more + rest/float64(len(a.clients))
		c.float += n
		c.debt = max(0, c.debt-c.plan.owe*owe)
		c.unpaid = min(c.debt, c.plan.owe*(1-owe)) + c.plan.raise*(1-more)
		c.charge(n, g.window())
		if c.isListening() && !c.isStale {
			k.assign(c, long, a.at, now)
		}
	}
}

// learn takes what the store answered.
func (k *Keeper) learn(a *ask, now time.Duration) {
	isEmpty, wait, g := false, time.Duration(0), a.group
	for i, ct := range g.counters {
		d := &a.first[i]
		isShort := !d.Allowed && (a.got < a.n-1 || a.got == 0)
		if isShort && d.Remaining == 0 {
			isEmpty, wait = true, max(wait, d.RetryAfter)
		}
		ct.learn(&a.last[i], a.got, isShort, now)
		g.cadence.learn(a.hits[i].Policy, d, a.sent)
	}
	if isEmpty && g.isWindow() {
		g.retryAt = now + min(wait, contended)
	}
}

// assign sends the client what was charged for, if that is not what it has or if it reported.
func (k *Keeper) assign(c *client, long, planned, now time.Duration) {
	rate, burst, isShort := c.affords(long)
	burst = math.Floor(burst)
	next := c.assigned
	if !c.isBucket() || rate != c.rate || burst != c.burst {
		next = bucketOf(rate, burst, c.assigned)
	}
	if next.TTL = k.ttl(c, next.Strategy, now); next.TTL < time.Second {
		return
	}
	if isShort && c.isBucket() {
		k.stats.Shortages++
	}
	c.isLow = isShort || c.isLow && rate < c.plan.rate
	isSame := c.isSent && next.Strategy == c.assigned.Strategy && next.MaxTokens == c.assigned.MaxTokens &&
		next.PerFill == c.assigned.PerFill && next.Fill == c.assigned.Fill
	if isSame && !c.reply && !c.isUrgent && !c.isLate(now, k.o.TTL) {
		return
	}
	if !c.reply && !c.isUrgent && !isShort {
		c.stream.pushed = planned
	}
	if next.Strategy == TokenBucket {
		c.float -= max(0, float64(next.MaxTokens)-c.burst)
		c.burst = float64(next.MaxTokens)
	} else {
		c.burst = 0
	}
	c.setRate(next.rate(), now)
	k.send(c, next, now)
}

// assignByPolicy assigns the clients of a group what holds while the store does not answer. What they let pass is not
// charged, also later.
func (k *Keeper) assignByPolicy(a *ask, now time.Duration) {
	g, sum := a.group, 0.0
	for _, c := range a.clients {
		sum += c.plan.rate
	}
	for _, c := range a.clients {
		if c.isGone || c.group != g || !c.isListening() || c.isStale {
			continue
		}
		c.isFree, c.float, c.debt, c.unpaid = true, 0, 0, 0
		rate := c.plan.rate
		switch g.onFailure {
		case descriptors.Fail: // the Envoy falls back when its assignment ends
			continue
		case descriptors.Deny:
			rate = 0
		case descriptors.Local:
			rate *= min(1, g.localRate/max(sum, 1e-9))
		case descriptors.Allow:
		}
		next := c.assigned
		if !c.isBucket() || math.Abs(rate-c.rate) > c.rate/100 {
			next = bucketOf(rate, max(1, c.plan.burst), c.assigned)
		}
		isSame := c.isSent && c.assigned.Strategy == next.Strategy && c.assigned.PerFill == next.PerFill
		if isSame && !c.reply && !c.isUrgent {
			continue
		}
		next.TTL = k.o.TTL
		c.rate, c.burst = next.rate(), float64(next.MaxTokens)
		k.send(c, next, now)
	}
}

// bucketOf returns the token bucket for a rate and a burst, or what denies all if the rate is too low for one.
func bucketOf(rate, burst float64, last Assignment) Assignment {
	if a, ok := roundDown(rate, burst, last); ok {
		return a
	}
	return Assignment{Strategy: DenyAll}
}

// ttl is how long the client's next assignment holds. One that does not extend the last one may be less than a second.
func (k *Keeper) ttl(c *client, s Strategy, now time.Duration) time.Duration {
	if !c.reply && !c.isUrgent && now-c.reported > max(c.every, interval)*3/2 {
		return (c.expires - now).Truncate(time.Second) // it may be gone
	}
	if ends := c.group.windowEnds(); s == DenyAll && ends > now {
		return min(max(k.o.TTL, (ends-now+time.Second-1).Truncate(time.Second)), longestDeny)
	}
	return k.o.TTL
}

// send has the next response to the client's stream carry an assignment.
func (k *Keeper) send(c *client, a Assignment, now time.Duration) {
	a.ID = c.id
	c.assigned, c.isSent, c.expires = a, true, now+a.TTL
	c.reply, c.isUrgent = false, false
	switch a.Strategy {
	case AllowAll:
		k.stats.AllowAll++
	case DenyAll:
		k.stats.DenyAll++
	case TokenBucket:
		k.stats.TokenBuckets++
	case Abandon:
	}
	c.stream.outbox = append(c.stream.outbox, a)
}

// response is what one stream is sent.
type response struct {
	to          Sender
	assignments []Assignment
}

// collect takes what is to be sent.
func (k *Keeper) collect() (out []response) {
	for s := range k.streams {
		if len(s.outbox) > 0 {
			out = append(out, response{s.to, s.outbox})
			s.outbox = nil
		}
	}
	return out
}
