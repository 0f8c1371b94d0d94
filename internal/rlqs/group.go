package rlqs

import (
	"iter"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// How a counter's limit is divided.
const (
	// slackOf is how many times as much as the clients want they are assigned at most, and slackPart one part in so many
	// of the limit more: an Envoy's requests may come to another one any time, but what is charged for none is others'
	// loss.
	slackOf, slackPart = 3, 10
	// While the counter has not enough, a process charges a little more than it got in the last second, to see whether
	// there is more: probeOf times that, and one part in probePart of the limit.
	probeOf, probePart = 1.05, 50
	// contended is how long after a denial a counter counts as one that has not enough.
	contended = time.Second
	// burstPart is the part of a limit's capacity that the bursts of all buckets of a process have together: as a process
	// may have on lease.
	burstPart = 10
	// leavePart is the part of what remains in a window that is assigned for the time between two reports.
	leavePart = 4
	// windowMargin is how long before its window ends what is not used is returned to it at the latest: longer than a call
	// takes.
	windowMargin = 20 * time.Millisecond
	// maxTold bounds the reasons that are logged.
	maxTold = 100
)

// counter is one of the limits' counters, and what this process may charge to it. The keeper's lock guards it.
type counter struct {
	key    string
	policy *limiter.Policy
	groups []*group

	sustained float64 // hits a second that can be charged for ever

	room     float64       // hits a second that it is thought to have; infinite while it denies nothing
	granted  float64       // hits a second that it granted lately
	began    time.Duration // when granted began to be measured
	lastAt   time.Duration // of granted
	deniedAt time.Duration

	remaining int64         // after the last charge, of a limit that counts in windows
	ends      time.Duration // when the fixed window that it was charged in ends, as far as is known; 0 if it is not
	window    int           // number of that fixed window, which tells it from others; 0 of what has none

	bursts   float64       // of all clients, in the step that is being done
	lookedAt time.Duration // when it was last looked whether they are
	dirty    bool          // the shares are to be divided again
	isListed bool          // among those that are
	total    float64       // that was divided last

	demand  sum // of all keepers' claims, in parts of the limit's rate
	buckets sum // of all keepers
}

// clients are those of all groups that are charged to the counter.
func (ct *counter) clients() iter.Seq[*client] {
	return func(yield func(*client) bool) {
		for _, g := range ct.groups {
			for _, c := range g.clients {
				if !yield(c) {
					return
				}
			}
		}
	}
}

// group is the clients that are charged to the same counters. The keeper's lock guards it.
type group struct {
	key      string
	hits     []limiter.Hit
	cadence  cadence
	counters []*counter // of hits
	clients  []*client

	onFailure descriptors.OnStoreFailure // the strictest one of its limits
	localRate float64                    // requests a second, with descriptors.Local
	isFailing bool                       // the store did not answer last time

	due     time.Duration
	urgent  bool
	retryAt time.Duration // a counter is empty until then
	back    float64       // hits to return to the window
	backOf  int           // that has this number
}

// resolve finds what the client counts. The keeper's lock is not held.
func (k *Keeper) resolve(now time.Duration) {
	k.mu.Lock()
	if k.changed {
		k.changed = false
		k.urgent = k.urgent[:0]
		k.eachClient(func(c *client) {
			if !c.isBroken() {
				c.isStale, c.isUrgent = true, true
				k.urgent = append(k.urgent, c)
			}
			c.unused = min(c.unused, c.burst) // a counter that was reset knows nothing of it
			c.float, c.inWindow, c.debt = min(c.float, 0), 0, 0
		})
		for _, g := range k.groups {
			g.back, g.retryAt = 0, 0
		}
	}
	fresh := slices.Clone(k.urgent)
	domains := make([]string, len(fresh))
	for i, c := range fresh {
		domains[i] = c.stream.domain
	}
	k.mu.Unlock()
	targets := make([]Target, len(fresh))
	for i, c := range fresh {
		targets[i] = k.o.Resolver.Resolve(domains[i], c.id)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.changed {
		return // and again in the next step
	}
	k.urgent = slices.Delete(k.urgent, 0, len(fresh))
	for i, c := range fresh {
		if !c.isGone {
			k.retarget(c, &targets[i], now)
		}
	}
}

// retarget has the client count what its target says.
func (k *Keeper) retarget(c *client, t *Target, now time.Duration) {
	c.isStale = false
	c.refused, c.shadow, c.enforced, c.rule = t.Refused, nil, nil, t.Rule
	var enforced []limiter.Hit
	none := false
	for i := range t.Hits {
		h := t.Hits[i]
		if t.Shadow || h.Mode == limiter.Shadow {
			if p, err := prepaid(h); err == nil && h.Policy.Algorithm() == limiter.FixedWindow {
				h = p // a report is charged as far as it fits
			}
			h.Mode, h.Group, h.ByItself = limiter.Shadow, 0, false
			c.shadow = append(c.shadow, shadowHit{h, countedOf(t, i)})
			continue
		}
		if why := Unfit(&h); why != "" && c.refused == "" {
			c.refused = why
		}
		h, err := prepaid(h)
		if err != nil && c.refused == "" {
			c.refused = err.Error()
		}
		none = none || h.Policy.Limit() == 0
		enforced, c.enforced = append(enforced, h), append(c.enforced, countedOf(t, i))
	}
	if len(c.shadow) == 0 {
		c.passed = 0
	}
	switch {
	case c.refused != "":
		k.leave(c)
		c.shadow, c.enforced, c.passed = nil, nil, 0
		k.tell(c)
	case len(enforced) == 0:
		k.leave(c)
		c.fixed = AllowAll
	case none:
		k.leave(c)
		c.fixed = DenyAll
	default:
		k.join(c, enforced, t, now)
	}
}

// tell logs why buckets get no assignment, each reason once.
func (k *Keeper) tell(c *client) {
	line := c.stream.domain + ": " + c.refused
	if _, ok := k.told[line]; ok || len(k.told) >= maxTold {
		return
	}
	k.told[line] = struct{}{}
	k.o.Logger.Warn("a limit cannot be assigned to Envoys as a quota, its buckets get no assignment",
		slog.String("domain", c.stream.domain), slog.String("reason", c.refused)) // a bucket's values are the requests'
}

// groupKey is equal for hits on the same counters.
func groupKey(hits []limiter.Hit) string {
	if len(hits) == 1 {
		return hits[0].Key
	}
	var b strings.Builder
	for i := range hits {
		b.WriteByte(0) // no key begins so
		b.WriteString(strconv.Itoa(len(hits[i].Key)))
		b.WriteByte(':')
		b.WriteString(hits[i].Key)
	}
	return b.String()
}

// join has the client be charged to the counters of hits.
func (k *Keeper) join(c *client, hits []limiter.Hit, t *Target, now time.Duration) {
	key := groupKey(hits)
	if c.group != nil && c.group.key != key {
		k.leave(c)
	}
	g := k.groups[key]
	if g == nil {
		g = &group{key: key}
		k.groups[key] = g
	}
	cad := cadenceOf(hits)
	cad.phase = g.cadence.phase
	g.cadence = cad
	g.hits = hits
	g.onFailure, g.localRate = failurePolicy(t)
	g.urgent = true
	k.count(g, now)
	if c.group == nil {
		c.group = g
		g.clients = append(g.clients, c)
		c.debt = min(g.stillCounted(c.debt, c.every, now), g.capacity())
		for _, ct := range g.counters {
			if c.reports == 1 && c.every > 0 && ct.came(c) { // the other Keeper charged what it let pass
				c.debt = 0
			}
		}
	}
	g.touch()
}

// count has the group have the counters of its hits.
func (k *Keeper) count(g *group, now time.Duration) {
	isNew := len(g.counters) == 0
	for i := range g.hits {
		h := &g.hits[i]
		ct := k.counters[h.Key]
		if ct == nil {
			ct = &counter{key: h.Key, began: now, lastAt: now, lookedAt: -1, deniedAt: -contended, room: math.Inf(1)}
			k.counters[h.Key] = ct
			ct.remaining = h.Policy.Limit()
		}
		if ct.policy == nil || ct.policy.Identity() != h.Policy.Identity() {
			ct.room, ct.remaining, ct.ends = math.Inf(1), h.Policy.Limit(), 0
			ct.window++
			ct.sustained = math.Inf(1)
		}
		ct.policy = h.Policy
		ct.sustained = min(ct.sustained, g.cadence.sustained(h.Policy))
		if isNew {
			g.counters = append(g.counters, ct)
			if !slices.Contains(ct.groups, g) {
				ct.groups = append(ct.groups, g)
			}
		}
	}
}

// leave ends what the client is charged to, if it is to anything. What it was assigned stays in force.
func (k *Keeper) leave(c *client) {
	g := c.group
	if g == nil {
		return
	}
	g.touch()
	c.group = nil
	c.burst, c.float, c.inWindow, c.debt, c.unused = 0, 0, 0, 0, 0
	if i := slices.Index(g.clients, c); i >= 0 {
		g.clients = slices.Delete(g.clients, i, i+1)
	}
	if len(g.clients) > 0 || g.back >= 1 {
		return
	}
	k.forget(g)
}

// forget removes a group without clients.
func (k *Keeper) forget(g *group) {
	delete(k.groups, g.key)
	for _, ct := range g.counters {
		if i := slices.Index(ct.groups, g); i >= 0 {
			ct.groups = slices.Delete(ct.groups, i, i+1)
		}
		if len(ct.groups) == 0 {
			delete(k.counters, ct.key)
		}
	}
}

// failurePolicy is what holds of a request with these limits while the store does not answer.
func failurePolicy(t *Target) (f descriptors.OnStoreFailure, localRate float64) {
	worst := map[descriptors.OnStoreFailure]int{
		descriptors.Allow: 0, descriptors.Local: 1, descriptors.Fail: 2, descriptors.Deny: 3,
	}
	localRate = math.Inf(1)
	for i, next := range t.OnFailure {
		if worst[next] > worst[f] {
			f = next
		}
		if i < len(t.Local) && t.Local[i] != nil {
			localRate = min(localRate, rateOf(t.Local[i]))
		}
	}
	return f, localRate
}

// touch has the shares of the group's counters be divided again.
func (g *group) touch() {
	for _, ct := range g.counters {
		ct.dirty = true
	}
}

// burstRoom returns by how much the bursts of the group's clients may rise.
func (g *group) burstRoom() float64 {
	room := math.Inf(1)
	for _, ct := range g.counters {
		room = min(room, float64(ct.policy.Capacity())/burstPart-ct.bursts)
	}
	return max(0, room)
}

// capacity is the most hits that can be charged at once.
func (g *group) capacity() float64 {
	least := int64(limiter.MaxHits)
	for i := range g.hits {
		least = min(least, g.hits[i].Policy.Largest())
	}
	return float64(least)
}

// stillCounted returns how many count now of n hits that passed evenly in the last time: not what was in a window that
// has ended, or what has leaked out of a bucket since.
func (g *group) stillCounted(n float64, in, now time.Duration) float64 {
	longest := 0.0
	for _, ct := range g.counters {
		counts := float64(ct.policy.Capacity()) / rateOf(ct.policy)
		if ct.ends > now {
			counts -= (ct.ends - now).Seconds()
		}
		longest = max(longest, counts)
	}
	return n * min(1, max(longest, 0)/max(in.Seconds(), 1e-9))
}

// isWindow reports whether what the group did not use can be returned to all of its counters. What was charged to a
// bucket that leaks has leaked.
func (g *group) isWindow() bool {
	return len(g.hits) > 0 && !slices.ContainsFunc(g.hits, func(h limiter.Hit) bool { return !isWindow(h.Policy) })
}

func isWindow(p *limiter.Policy) bool {
	switch p.Algorithm() {
	case limiter.FixedWindow, limiter.SlidingWindow, limiter.SlidingLog:
		return true
	default:
		return false
	}
}

// canRefund reports whether what was charged in the time since a report still counts in windows that slide: what has
// left one cannot be returned to it. Fixed windows are looked at by their end.
func (g *group) canRefund(since time.Duration) bool {
	return g.isWindow() && !slices.ContainsFunc(g.hits, func(h limiter.Hit) bool {
		return !h.Policy.CountsInWindows() && h.Policy.Window() < 2*since
	})
}

// isSlow reports whether a limit admits less than a request a second.
func (g *group) isSlow() bool {
	return slices.ContainsFunc(g.hits, func(h limiter.Hit) bool { return rateOf(h.Policy) < 1 })
}

// slides reports whether one of the group's windows slides, so that hits leave it one by one.
func (g *group) slides() bool {
	return slices.ContainsFunc(g.hits, func(h limiter.Hit) bool { return !h.Policy.CountsInWindows() })
}

// windowEnds is the end of the fixed window that ends first; 0 if there is none.
func (g *group) windowEnds() (ends time.Duration) {
	for _, ct := range g.counters {
		if ct.ends > 0 && (ends == 0 || ct.ends < ends) {
			ends = ct.ends
		}
	}
	return ends
}

// window returns the number of the fixed windows that the group's counters are in: another one as soon as one of them
// has ended.
func (g *group) window() (n int) {
	for _, ct := range g.counters {
		n += ct.window
	}
	return n
}

// open has the counter begin again where its fixed window has ended.
func (ct *counter) open(now time.Duration) (opened bool) {
	if ct.ends == 0 || now < ct.ends {
		return false
	}
	ct.ends, ct.remaining = 0, ct.policy.Limit()
	ct.window++
	ct.room, ct.deniedAt = math.Inf(1), now-contended
	ct.dirty = true
	return true
}

// learn takes what the store answered to a charge: how many hits it granted, and whether that was less than asked for
// because of this counter.
func (ct *counter) learn(d *limiter.Decision, got int64, isShort bool, now time.Duration) {
	ct.granted *= math.Exp(-(now - ct.lastAt).Seconds() / contended.Seconds())
	ct.granted += float64(got) / contended.Seconds()
	ct.lastAt = now
	ct.remaining = d.Remaining
	if ct.policy.CountsInWindows() && d.ResetAfter > 0 {
		ct.sees(now + d.ResetAfter)
	}
	if !isShort {
		return
	}
	ct.deniedAt = now
	age := max(now-ct.began, tick)
	lately := ct.granted / (1 - math.Exp(-age.Seconds()/contended.Seconds())) // of less than a second
	ct.room = lately*probeOf + ct.most()/probePart
	ct.dirty = true
}

// sees takes the end of a fixed window as an answer of the store has it, which is late by the time that the answer
// took: of one window the earliest end is the best.
func (ct *counter) sees(ends time.Duration) {
	switch half := ct.policy.Window() / 2; {
	case ct.ends == 0:
		ct.ends = ends
	case ends > ct.ends+half || ends < ct.ends-half:
		ct.ends = ends
		ct.window++
	default:
		ct.ends = min(ct.ends, ends)
	}
}

// most is how many hits a second the limit gives at most: of one that counts in windows, a part of what remains.
func (ct *counter) most() float64 {
	if isWindow(ct.policy) {
		return max(ct.sustained, float64(ct.remaining)/leavePart/interval.Seconds())
	}
	return ct.sustained
}

// divisible is how many hits a second are divided, of clients that want that many.
func (ct *counter) divisible(wanted float64, now time.Duration) float64 {
	most := ct.most()
	fair := ct.fair(most)
	if now-ct.deniedAt < contended {
		return min(ct.room, fair, wanted*probeOf+most/probePart)
	}
	ct.room = math.Inf(1)
	return min(fair, wanted*slackOf+most/slackPart)
}
