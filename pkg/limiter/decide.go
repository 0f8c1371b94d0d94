package limiter

import "time"

// Slot is a counter's state while a request is decided over it.
type Slot struct {
	// State is what the store held: the zero State for a key that it does not know.
	State State
	// Next is the state after the request. It is meaningful when Changed is set.
	Next State
	// Changed says that Next must be written. A Next with KeepFor 0 is as new: its key may be dropped.
	Changed bool
	// KeepFor is how long Next matters; after that the key may be forgotten without changing any decision.
	KeepFor time.Duration
}

// First returns the lowest index whose hit has the same key as hits[i]: the slot that both share.
func First(hits []Hit, i int) int {
	for j := range i {
		if hits[j].Key == hits[i].Key {
			return j
		}
	}
	return i
}

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
	quotas, over := 0, 0
	for i := 0; i < len(hits); {
		group, fits := i, true
		for ; i < len(hits) && hits[i].Group == hits[group].Group && hits[i].Mode == hits[group].Mode; i++ {
			fits = fits && out[i].Allowed
		}
		if hits[group].Mode == Quota {
			quotas++
			if !fits {
				over++
			}
		}
	}
	return quotas > 0 && over == quotas
}

// Decide answers one request's hits at time now (microseconds since the Unix epoch) and reports whether the
// request is admitted as a whole. slots[First(hits, i)] carries the state of hits[i]'s key.
//
// Admitted: every hit that fits is charged. Denied: nothing is charged, except what the policy's ChargeDenied
// takes for the hits that denied. In both cases a Shadow hit is charged by itself, and a negative hit gives
// back, since what it returns has ended whatever becomes of this request.
//
// redisstore's frame.lua is this function again.
func Decide(now int64, hits []Hit, slots []Slot, out []Decision) bool {
	if len(hits) == 1 && hits[0].Mode == Enforce {
		slots[0].step(&hits[0], now, takeOrPenalty, &out[0])
		return out[0].Allowed
	}
	for i := range hits {
		slots[First(hits, i)].step(&hits[i], now, TryCharge(&hits[i]), &out[i])
	}
	if Admitted(hits, out) {
		return true
	}
	chargeDenied(now, hits, slots, out)
	return false
}

// chargeDenied is Decide's second pass over a request that is denied as a whole: it starts again from the
// stored states and charges only what a denied request is charged; see TellDenied for what is answered.
func chargeDenied(now int64, hits []Hit, slots []Slot, out []Decision) {
	quotaDenies := QuotaDenies(hits, out)
	for i := range hits {
		slots[i].Changed = false
	}
	for i := range hits {
		var d Decision
		slots[First(hits, i)].step(&hits[i], now, DeniedCharge(&hits[i], out[i].Allowed, quotaDenies), &d)
		TellDenied(hits, i, out, &d)
	}
}

// together is what the hits up to and with hits[i] cost its key.
func together(hits []Hit, i int) (n int64) {
	for j := range i + 1 {
		if hits[j].Key == hits[i].Key {
			n += max(0, hits[j].N)
		}
	}
	return n
}

// step runs the policy's step over the slot's newest state.
func (s *Slot) step(h *Hit, now int64, c charge, d *Decision) {
	from := &s.State
	if s.Changed {
		from = &s.Next
	}
	next, took := h.Policy.step(from, now, h.N, c, d)
	if took {
		s.Next, s.Changed, s.KeepFor = next, true, d.ResetAfter+h.Policy.linger
	}
}
