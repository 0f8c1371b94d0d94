package rlqs

import (
	"math"
	"slices"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

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
	all := make([]ask, len(due)) // at once: a step may have thousands
	asks = make([]*ask, 0, len(due))
	for i, g := range due {
		a := &all[i]
		*a = ask{group: g, hits: g.hits, clients: slices.Clone(g.clients), at: now, back: g.takeBack(now)}
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
