package decide

import "github.com/weir-ratelimit/weir/pkg/descriptors"

// Boosts are limits that temporarily replace others, on the same counters. They are immutable.
type Boosts struct {
	// Rules maps a limit of the rules to its replacement. A limit that a request brings along is never replaced.
	Rules map[*descriptors.Limit]*descriptors.Limit
	// Keys maps a counter's key to the replacements of its limits. It goes before Rules.
	Keys map[string][]Boosted
}

// Boosted is a limit and its replacement.
type Boosted struct{ Of, By *descriptors.Limit }

// Limit returns the replacement of a counter's limit, or the limit itself.
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

// boost replaces the limits that were matched.
func (v *Verdict) boost(b *Boosts) {
	if b == nil {
		return
	}
	for i, l := range v.Limits {
		l = b.Limit(l, v.Hits[i].Key)
		v.Limits[i], v.Hits[i].Policy = l, l.Policy
	}
}
