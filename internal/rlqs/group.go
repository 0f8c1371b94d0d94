package rlqs

import (
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
	// maxLogged bounds the reasons that are logged.
	maxLogged = 100
)

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
