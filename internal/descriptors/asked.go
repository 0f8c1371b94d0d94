package descriptors

import (
	"slices"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Asked finds the limits that count in a request. Call Add for each descriptor, then MakeHits. The zero Asked is an
// empty request; Reset makes it empty again and keeps its memory.
type Asked struct {
	// Limits are the limits that count, grouped by descriptor. Hits[i] charges Limits[i] one hit.
	Limits []*Limit
	Hits   []limiter.Hit

	reached     []reached
	replaced    []string        // names of replaced limits
	replacedSet map[string]bool // set of replaced, if it is long
	keys        []byte          // keys of all hits
	ends        []int           // ends of the keys
}

// reached is a descriptor with its rule and its limits.
type reached struct {
	entries []Entry
	rule    *Rule
	limits  []*Limit
}

// Add adds a descriptor and the rule that it reached, or nil. own, if not nil, is the limit that the request carries
// for the descriptor; it replaces the rule's limits.
func (a *Asked) Add(entries []Entry, rule *Rule, own *Limit) {
	to := reached{entries: entries, rule: rule}
	if rule != nil {
		to.limits = rule.Limits
		a.replaced = append(a.replaced, rule.Replaces...)
	}
	if own != nil {
		to.limits = []*Limit{own}
	}
	for _, l := range to.limits {
		a.replaced = append(a.replaced, l.Replaces...)
	}
	a.reached = append(a.reached, to)
}

// MakeHits makes a hit of each limit that is not replaced. It returns false if there are more than most. A hit's Group
// is the index of its descriptor. If a quota of the request is never over, so that the other quotas do not deny, Group
// is ^index. The keys of all hits are one allocation.
func (a *Asked) MakeHits(d *Domain, most int) bool {
	hasRoom := false
	for i := range a.reached {
		to, counting := &a.reached[i], false
		for _, l := range to.limits {
			if a.isReplaced(l.Name) {
				continue
			}
			if len(a.Hits) == most {
				return false
			}
			counting = true
			a.keys = l.AppendKey(a.keys, to.entries)
			a.ends, a.Limits = append(a.ends, len(a.keys)), append(a.Limits, l)
			a.Hits = append(a.Hits, limiter.Hit{Policy: l.Policy, N: 1, Mode: l.Rule.Mode, Group: i, Route: l.Route()})
		}
		hasRoom = hasRoom || d.isQuotaWithRoom(to, counting)
	}
	keys, start := string(a.keys), 0
	for i, end := range a.ends {
		a.Hits[i].Key, start = keys[start:end], end
		if hasRoom {
			a.Hits[i].Group = ^a.Hits[i].Group
		}
	}
	return true
}

// isQuotaWithRoom reports whether the descriptor is a quota that is never over, so that no other quota denies the
// request. As in envoyproxy/ratelimit, such a quota is a rule in shadow mode and, with --quota-mode, a descriptor
// without a limit that counts, unless its rule is unlimited.
func (d *Domain) isQuotaWithRoom(to *reached, counting bool) bool {
	if !counting {
		return d != nil && d.QuotaMode() && (to.rule == nil || !to.rule.Unlimited)
	}
	rule := to.limits[0].Rule
	return rule.Mode == limiter.Shadow && (rule.QuotaMode || d.QuotaMode())
}

// maxScanned is the maximum number of names that are compared one by one, which is faster than a map.
const maxScanned = 16

// isReplaced reports whether limits of that name are replaced in this request.
func (a *Asked) isReplaced(name string) bool {
	if name == "" || len(a.replaced) <= maxScanned {
		return name != "" && slices.Contains(a.replaced, name)
	}
	if a.replacedSet == nil {
		a.replacedSet = make(map[string]bool, len(a.replaced))
		for _, name := range a.replaced {
			a.replacedSet[name] = true
		}
	}
	return a.replacedSet[name]
}

// Reset empties the request. It keeps the memory and drops all references to the old request.
func (a *Asked) Reset() {
	clear(a.Limits)
	clear(a.Hits)
	clear(a.reached)
	clear(a.replaced)
	*a = Asked{
		Limits: a.Limits[:0], Hits: a.Hits[:0], reached: a.reached[:0], replaced: a.replaced[:0], keys: a.keys[:0],
		ends: a.ends[:0],
	}
}
