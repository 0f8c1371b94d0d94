package rls

import "github.com/weir-ratelimit/weir/pkg/descriptors"

// Boosts are limits that stand for others, for a time, on the same counters. They are immutable.
type Boosts struct {
	// Rules has what stands for a limit of the rules. A limit that a request brings along is none of them.
	Rules map[*descriptors.Limit]*descriptors.Limit
	// Keys has what stands for limits of single counters, by the counters' keys; it goes before Rules.
	Keys map[string][]Boosted
}

// Boosted is a limit, and what stands for it.
type Boosted struct{ Of, By *descriptors.Limit }

// Limit is what stands for the limit of a counter: itself, where nothing does.
func (b *Boosts) Limit(of *descriptors.Limit, key string) *descriptors.Limit {
	for _, k := range b.Keys[key] {
		if k.Of == of {
			return k.By
		}
	}
	if by := b.Rules[of]; by != nil {
		return by
	}
	return of
}

// boost puts what is in force in the place of the limits that were matched.
func (sc *scratch) boost() {
	if sc.o.Boosts == nil {
		return
	}
	b := sc.o.Boosts()
	if b == nil {
		return
	}
	for i, l := range sc.limits {
		l = b.Limit(l, sc.hits[i].Key)
		sc.limits[i], sc.hits[i].Policy = l, l.Policy
	}
}
