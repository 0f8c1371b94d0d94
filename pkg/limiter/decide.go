package limiter

import "time"

// Slot is a counter's state while a request is decided over it.
type Slot struct {
	// State is what the store held: the zero State for a key that it does not know.
	State State
	// Next is the state after the request. It is meaningful when Changed is set.
	Next State
	// Changed says that Next must be written. With KeepFor 0 the limit is fully available again: the key may be
	// dropped.
	Changed bool
	// KeepFor is how long Next matters; after that the key may be forgotten without changing any decision.
	KeepFor time.Duration
	// Cut says that State was further ahead than the policy can put it: the rule was edited, or the clock was set back.
	// Next goes on from the furthest that the policy can have left.
	Cut bool

	first int   // one more than First: 0 where Link was not called
	asked int64 // what the hits of the key that were looked at so far cost together
}

// scanned is how many hits are looked through one by one for an earlier one of the same key: up to there that is
// cheaper than a map, and allocates nothing.
const scanned = 16

// Link finds which hits share a key, and so a slot: it sets the First of slots[i] to the lowest index whose hit has the
// key of hits[i]. It takes time in proportion to the hits, and is done once for each use of slots.
func Link(hits []Hit, slots []Slot) {
	if len(hits) <= scanned {
		for i := range hits {
			slots[i].first = 1 + scan(hits, i)
		}
		return
	}
	seen := make(map[string]int, len(hits))
	for i := range hits {
		first, ok := seen[hits[i].Key]
		if !ok {
			first = i
			seen[hits[i].Key] = i
		}
		slots[i].first = 1 + first
	}
}

func scan(hits []Hit, i int) int {
	for j := range i {
		if hits[j].Key == hits[i].Key {
			return j
		}
	}
	return i
}

// First is the index of the slot that this one's hit shares with others of the same key, its own if it is the first of
// them. Link has set it.
func (s *Slot) First() int { return s.first - 1 }

// Admitted says whether a request passes: every Enforce hit fits, and not all of its quotas are over.
func Admitted(hits []Hit, out []Decision) bool {
	for i := range hits {
		if hits[i].Mode == Enforce && !out[i].Allowed {
			return false
		}
	}
	return !QuotaDenies(hits, out)
}

// QuotaDenies says whether the request has Quota hits, and each group of them one that does not fit.
func QuotaDenies(hits []Hit, out []Decision) bool {
	quotas, denies := 0, true
	group, fits := 0, false // the group of the quota hits before, and whether all of them fit
	for i := range hits {
		if hits[i].Mode != Quota {
			continue
		}
		switch {
		case quotas == 0 || hits[i].Group > group:
			denies = denies && !fits
			group, fits = hits[i].Group, true
		case hits[i].Group < group: // they do not stand side by side
			return scatteredQuotasDeny(hits, out)
		}
		quotas++
		fits = fits && (out[i].Allowed || hits[i].Group < 0)
	}
	return quotas > 0 && denies && !fits
}

// scatteredQuotasDeny is QuotaDenies where the hits of a group stand anywhere.
func scatteredQuotasDeny(hits []Hit, out []Decision) bool {
	over := make(map[int]bool)
	for i := range hits {
		if hits[i].Mode == Quota {
			over[hits[i].Group] = over[hits[i].Group] || !out[i].Allowed && hits[i].Group >= 0
		}
	}
	for _, is := range over {
		if !is {
			return false
		}
	}
	return true
}

// Decide answers one request's hits at time now (microseconds since the Unix epoch) and reports whether the
// request is admitted as a whole. The slot that hits[i] shares with others of its key, which Link finds, carries the
// state of that key.
//
// Admitted: every hit that fits is charged, and so is a Quota hit that does not: the request passes, and uses up what
// was left of that quota (see Spends). Denied: nothing is charged, except what the policy's ChargeDenied takes for
// the hits that denied. In both cases a Shadow hit is charged by itself, and a negative hit gives back, since what it
// returns has ended whatever becomes of this request.
//
// With ByItself none of that holds: each hit is charged as if it were the request's only one, and a Quota hit that does
// not fit is charged as in an admitted request.
//
// It takes time in proportion to the hits. redisstore's slowly.lua is this function again.
func Decide(now int64, hits []Hit, slots []Slot, out []Decision) bool {
	return DecideAt(Clocks{now, now}, hits, slots, out)
}

// Clocks are the two times of a store whose wall clock may be set while it runs, both in microseconds since the Unix
// epoch. They are equal where the store has one clock.
type Clocks struct {
	Steady int64 // never steps: what every other limit counts by
	Wall   int64 // what the clocks on the wall show: where windows begin of policies that are OnWallClock
}

func (c *Clocks) of(p *Policy) int64 {
	if p.traits.onWall {
		return c.Wall
	}
	return c.Steady
}

// DecideAt is Decide where windows on the clock go by another clock than the rest.
func DecideAt(now Clocks, hits []Hit, slots []Slot, out []Decision) bool {
	if len(hits) == 1 && hits[0].Mode == Enforce {
		slots[0].step(&hits[0], &now, ChargeOrPenalty, &out[0])
		return out[0].Allowed
	}
	if len(hits) > 0 && slots[0].first == 0 {
		Link(hits, slots)
	}
	if ByItself(hits) {
		chargeEach(&now, hits, slots, out)
		return Admitted(hits, out)
	}
	for i := range hits {
		slots[slots[i].First()].step(&hits[i], &now, TryCharge(&hits[i]), &out[i])
	}
	if Admitted(hits, out) {
		for i := range hits {
			if Spends(&hits[i], out[i].Allowed) {
				var d Decision
				slots[slots[i].First()].step(&hits[i], &now, ChargeSpend, &d)
				CompleteSpent(&out[i], &d)
			}
		}
		return true
	}
	chargeDenied(&now, hits, slots, out)
	return false
}

// chargeEach decides and charges each hit by itself.
func chargeEach(now *Clocks, hits []Hit, slots []Slot, out []Decision) {
	for i := range hits {
		slot := &slots[slots[i].First()]
		if hits[i].Mode != Quota {
			slot.step(&hits[i], now, ChargeOrPenalty, &out[i])
			continue
		}
		slot.step(&hits[i], now, ChargeIfFits, &out[i])
		if !out[i].Allowed {
			var d Decision
			slot.step(&hits[i], now, ChargeSpend, &d)
			CompleteSpent(&out[i], &d)
		}
	}
}

// chargeDenied is Decide's second pass over a request that is denied as a whole: it starts again from the
// stored states and charges only what a denied request is charged; see CompleteDenied for what is answered.
func chargeDenied(now *Clocks, hits []Hit, slots []Slot, out []Decision) {
	quotaDenies := QuotaDenies(hits, out)
	for i := range hits {
		slots[i].Changed, slots[i].asked = false, 0
	}
	for i := range hits {
		var d Decision
		h, slot := &hits[i], &slots[slots[i].First()]
		slot.step(h, now, DeniedCharge(h, out[i].Allowed, quotaDenies), &d)
		slot.asked += max(0, h.N)
		CompleteDenied(h, slot.asked, &out[i], &d)
	}
}

// step runs the policy's step over the slot's newest state.
func (s *Slot) step(h *Hit, now *Clocks, c Charge, d *Decision) {
	from := &s.State
	if s.Changed {
		from = &s.Next
	}
	a := h.Policy.algorithm
	if h.TakenAt != 0 {
		a = h.takesBack(now.Steady)
	}
	next, o := a.step(*from, now.of(h.Policy), h.N, c)
	*d = o.decision()
	if !o.changed() {
		return
	}
	s.Next, s.Changed, s.KeepFor = next, true, d.ResetAfter+h.Policy.traits.linger
	s.Cut = s.Cut || o.is&cuts != 0
	if next.isNew() { // a window that nothing was counted in has an end, too
		s.KeepFor = 0
	}
}
