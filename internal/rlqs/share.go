package rlqs

import (
	"math"
	"slices"
	"time"
)

// divide returns what each of several clients gets of total, in requests a second, by what they want.
//
// Where they want more than total, the shares are max-min fair: none can be raised without lowering one that is not
// larger. Where they want less, each gets what it wants, and the rest is divided: half of it equally, so that a client
// that wants more next time already has some of it, and half in proportion to what they want.
func divide(wants []float64, total float64) []float64 {
	shares := make([]float64, 0, len(wants))
	sum := 0.0
	for _, w := range wants {
		sum += w
	}
	if total <= 0 || len(wants) == 0 {
		return shares[:len(wants)]
	}
	if sum >= total {
		level := waterLevel(wants, total)
		for _, w := range wants {
			shares = append(shares, min(w, level))
		}
		return shares
	}
	equal, byWant := (total-sum)/float64(len(wants)), 0.0
	if sum > 0 {
		equal /= 2
		byWant = (total - sum) / 2 / sum
	}
	for _, w := range wants {
		shares = append(shares, w+equal+w*byWant)
	}
	return shares
}

// waterLevel returns the level to which each want is cut, so that together they are total.
func waterLevel(wants []float64, total float64) float64 {
	sorted := slices.Clone(wants)
	slices.Sort(sorted)
	for i, w := range sorted {
		if level := total / float64(len(sorted)-i); w >= level {
			return level
		}
		total -= w
	}
	return math.Inf(1)
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
