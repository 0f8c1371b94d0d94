package descriptors

import (
	"slices"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Asked finds which limits count in a request: Add each descriptor, then MakeHits. The zero Asked is an empty request,
// and Reset makes it one again that keeps its memory.
type Asked struct {
	// Limits are those that count, and Hits[i] charges Limits[i] one hit. Those of a descriptor follow each other.
	Limits []*Limit
	Hits   []limiter.Hit

	reached     []reached
	replaced    []string        // names of limits that do not count in this request
	replacedSet map[string]bool // the same, made when many names are looked for
	keys        []byte          // of all hits
	ends        []int           // of the hits' keys
}

// reached is a descriptor, its rule, and the limits that it has.
type reached struct {
	entries []Entry
	rule    *Rule
	limits  []*Limit
}

// Add adds a descriptor and the rule that it reaches, nil for none. Unless own is nil, it is the limit that the
// descriptor brings along, and replaces the rule's.
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

// MakeHits makes a hit of each limit that is not replaced, unless they are more than most: then it returns false. A
// hit's Group is the index of its descriptor. If a quota of the request is never over, so that no other one denies, it
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
// request: one whose rule is in shadow mode, and with --quota-mode each descriptor without a limit that counts, unless
// its rule is unlimited. It is so in envoyproxy/ratelimit.
func (d *Domain) isQuotaWithRoom(to *reached, counting bool) bool {
	if !counting {
		return d != nil && d.QuotaMode() && (to.rule == nil || !to.rule.Unlimited)
	}
	rule := to.limits[0].Rule
	return rule.Mode == limiter.Shadow && (rule.QuotaMode || d.QuotaMode())
}

// maxScanned is how many names are looked through one by one: up to there that is cheaper than a map.
const maxScanned = 16

// isReplaced reports whether limits of that name do not count in this request.
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

// Reset empties the request. It keeps the memory, and nothing of this request alive.
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
