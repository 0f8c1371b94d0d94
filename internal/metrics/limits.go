package metrics

import (
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// limits counts what each limit decided. A set's counters are resolved when it goes live; a request that was matched by
// the set before finds its counters by their labels.
type limits struct {
	maxRules int     // with counters of their own
	ratio    float64 // share of a limit above which a hit is near it
	live     atomic.Pointer[limitTable]
	request  limitCounters // of limits that requests bring along
	other    limitCounters // of the limits of all other rules
}

// limitTable is the counters of one set. It is immutable, except for the counts.
type limitTable struct {
	slots    []limitSlot // by Limit.ID
	byLabels map[labels]*limitCounters
	domains  int
	others   int // rules without counters of their own
}

// limitSlot is a limit's counters, and its rule, by which of recognizes a limit of another set.
type limitSlot struct {
	rule *descriptors.Rule
	*limitCounters
}

// labels name a limit.
type labels struct{ domain, rule, limit string }

type limitCounters struct {
	labels
	decisions, hits       outcomeCounts
	near, known, returned atomic.Uint64 // hits

	sampled sampled // by Sample alone
}

const outcomeCount = decide.DeniedLocally + 1

// outcomeCounts are by decide.Outcome.
type outcomeCounts [outcomeCount]atomic.Uint64

// otherRules labels rules and domains without series of their own.
const otherRules = "(other)"

func newLimits(maxRules int, ratio float64) *limits {
	ls := &limits{maxRules: maxRules, ratio: ratio}
	ls.live.Store(&limitTable{})
	ls.request.limit = "(request)"
	ls.other.labels = labels{otherRules, otherRules, otherRules}
	return ls
}

// compiled makes the counters of the set's limits the live ones. A limit that both sets have keeps its counts; a limit
// that is gone loses its series. The first maxRules rules have counters of their own.
func (ls *limits) compiled(set *descriptors.Set) {
	before := ls.live.Load()
	t := &limitTable{
		slots:    make([]limitSlot, len(set.Limits())),
		byLabels: make(map[labels]*limitCounters, min(len(set.Limits()), ls.maxRules)),
		domains:  len(set.Domains()),
	}
	rules := 0
	for i, l := range set.Limits() {
		set.Rest()
		if i == 0 || l.Rule != set.Limits()[i-1].Rule { // a rule's limits stand side by side
			rules++
		}
		if rules > ls.maxRules {
			t.slots[i] = limitSlot{l.Rule, &ls.other}
			continue
		}
		name := labelsOf(l)
		c := t.byLabels[name]
		if c == nil {
			c = before.byLabels[name]
		}
		if c == nil {
			name = name.clone()
			c = &limitCounters{labels: name}
		}
		t.slots[i], t.byLabels[name] = limitSlot{l.Rule, c}, c
	}
	t.others = max(0, rules-ls.maxRules)
	ls.live.Store(t)
}

// clone returns labels that outlive the rules.
func (l labels) clone() labels {
	return labels{strings.Clone(l.domain), strings.Clone(l.rule), strings.Clone(l.limit)}
}

// labelsOf names a limit: by its name, else by its number in the rule, from 1, if the rule has several.
func labelsOf(l *descriptors.Limit) labels {
	name := labels{l.Rule.Domain, l.Rule.Path, l.Name}
	if number := l.Position(); name.limit == "" && len(l.Rule.Limits) > 1 && number > 0 {
		name.limit = strconv.Itoa(number)
	}
	return name
}

// Decided implements decide.Observer.
func (m *Metrics) Decided(l *descriptors.Limit, o decide.Outcome, hits int64, d *limiter.Decision) {
	c := m.limits.of(l)
	if c == nil {
		return // a reload removed the rule during the request
	}
	c.decisions[o].Add(1)
	switch {
	case hits > 0:
		c.hits[o].Add(uint64(hits))
		switch {
		case o == decide.Allowed:
			if near := m.limits.nearHits(l.Policy, hits, d.Remaining); near > 0 {
				c.near.Add(uint64(near))
			}
		case o == decide.Denied && d.Known:
			c.known.Add(uint64(hits))
		}
	case hits < 0:
		c.returned.Add(uint64(-hits))
	}
}

// nearHits returns how many of the hits just charged lie above the ratio of the capacity. It rounds down, as
// envoyproxy/ratelimit does.
func (ls *limits) nearHits(p *limiter.Policy, hits, remaining int64) int64 {
	capacity := p.Capacity()
	return min(hits, capacity-remaining-int64(float64(capacity)*ls.ratio))
}

func (ls *limits) of(l *descriptors.Limit) *limitCounters {
	if l.ID < 0 {
		return &ls.request
	}
	t := ls.live.Load()
	if l.ID < len(t.slots) && t.slots[l.ID].rule == l.Rule {
		return t.slots[l.ID].limitCounters
	}
	c := t.byLabels[labelsOf(l)]
	if c == nil && t.others > 0 {
		return &ls.other // or the rule is gone: the labels do not tell
	}
	return c
}

// asked yields the counters of every limit that a request asked.
func (ls *limits) asked(yield func(*limitCounters) bool) {
	if ls.request.isAsked() && !yield(&ls.request) || ls.other.isAsked() && !yield(&ls.other) {
		return
	}
	for _, c := range ls.live.Load().byLabels {
		if c.isAsked() && !yield(c) {
			return
		}
	}
}

func (c *limitCounters) isAsked() bool {
	for o := range c.decisions {
		if c.decisions[o].Load() > 0 {
			return true
		}
	}
	return false
}

// Decisions returns how often a limit had each outcome, by decide.Outcome. It returns nil for a limit without counters
// of its own.
func (m *Metrics) Decisions(l *descriptors.Limit) []uint64 {
	c := m.limits.of(l)
	if c == nil || c.labels != labelsOf(l) {
		return nil
	}
	all := make([]uint64, outcomeCount)
	for o := range all {
		all[o] = c.decisions[o].Load()
	}
	return all
}
