package metrics

import (
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// limits counts decisions. The counters of a set's limits are resolved when it goes live; a request that was
// matched by the set before it finds them by their labels.
type limits struct {
	maxRules int     // that have counters of their own
	ratio    float64 // of its capacity that is near a limit
	live     atomic.Pointer[table]
	request  counters // of limits that requests bring along
	other    counters // of the limits of all other rules

	decisions, hits, near, known, returned, domains, count, others *prometheus.Desc
}

// table is the counters of one set. It is immutable, except for the counts.
type table struct {
	slots    []slot // by Limit.ID
	byLabels map[labels]*counters
	domains  int
	others   int // rules that have no counters of their own
}

// slot is a limit's counters, and the rule that tells whether a limit of that ID is this set's.
type slot struct {
	rule *descriptors.Rule
	*counters
}

// labels name a limit.
type labels struct{ domain, rule, limit string }

// counters are a limit's.
type counters struct {
	labels
	decisions, hits       [len(outcomeLabels)]atomic.Uint64 // by decide.Outcome
	near, known, returned atomic.Uint64                     // hits
}

// outcomeLabels are decide.Outcome's names.
var outcomeLabels = [...]string{
	decide.Allowed:          decide.Allowed.String(),
	decide.Uncharged:        decide.Uncharged.String(),
	decide.Denied:           decide.Denied.String(),
	decide.ShadowDenied:     decide.ShadowDenied.String(),
	decide.QuotaOver:        decide.QuotaOver.String(),
	decide.AllowedOnFailure: decide.AllowedOnFailure.String(),
	decide.DeniedOnFailure:  decide.DeniedOnFailure.String(),
	decide.AllowedLocally:   decide.AllowedLocally.String(),
	decide.DeniedLocally:    decide.DeniedLocally.String(),
}

func newLimits(maxRules int, ratio float64) *limits {
	ofLimit := []string{"domain", "rule", "limit"}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	l := &limits{
		maxRules: maxRules, ratio: ratio,
		decisions: desc("weir_decisions_total", "Answers of a limit, by outcome. A limit appears with its first request.",
			append(ofLimit, "outcome")...),
		hits: desc("weir_hits_total", "The hits that a limit was asked for, by outcome: the sum of the requests' costs.", append(ofLimit, "outcome")...),
		near: desc("weir_hits_near_limit_total",
			"Allowed hits that lay above --near-limit-ratio of the limit (of its burst, where it has one).", ofLimit...),
		known: desc("weir_hits_known_denied_total",
			"Denied hits that were answered without Redis, which had denied the same before.", ofLimit...),
		returned: desc("weir_hits_returned_total", "Hits given back by negative costs.", ofLimit...),
		domains:  desc("weir_rules_domains", "Domains of the live rules."),
		count:    desc("weir_rules_limits", "Limits of the live rules."),
		others: desc("weir_rules_without_series",
			"Live rules beyond --metrics-max-rules, which count together as domain, rule and limit (other)."),
	}
	l.live.Store(&table{})
	l.request.limit = "(request)"
	l.other.labels = labels{otherRules, otherRules, otherRules}
	return l
}

// otherRules labels what has no series of its own.
const otherRules = "(other)"

// RulesCompiled makes the counters of the set's limits the live ones. A
// limit that was there before goes on from its counts, one that is gone takes its series with it. The first maxRules
// rules have counters of their own.
func (ls *limits) RulesCompiled(set *descriptors.Set) {
	before := ls.live.Load()
	t := &table{
		slots:    make([]slot, len(set.Limits())),
		byLabels: make(map[labels]*counters, min(len(set.Limits()), ls.maxRules)),
		domains:  len(set.Domains()),
	}
	rules := 0
	for i, l := range set.Limits() {
		set.Rest()
		if i == 0 || l.Rule != set.Limits()[i-1].Rule { // a rule's limits stand side by side
			rules++
		}
		if rules > ls.maxRules {
			t.slots[i] = slot{l.Rule, &ls.other}
			continue
		}
		name := labelsOf(l)
		c := t.byLabels[name]
		if c == nil {
			c = before.byLabels[name]
		}
		if c == nil {
			name = name.clone()
			c = &counters{labels: name}
		}
		t.slots[i], t.byLabels[name] = slot{l.Rule, c}, c
	}
	t.others = max(0, rules-ls.maxRules)
	ls.live.Store(t)
}

// clone outlives the rules.
func (l labels) clone() labels {
	return labels{strings.Clone(l.domain), strings.Clone(l.rule), strings.Clone(l.limit)}
}

// labelsOf names a limit: by its name, or by its place in the rule, from 1, where the rule has several.
func labelsOf(l *descriptors.Limit) labels {
	name := labels{l.Rule.Domain, l.Rule.Path, l.Name}
	if place := l.Place(); name.limit == "" && len(l.Rule.Limits) > 1 && place > 0 {
		name.limit = strconv.Itoa(place)
	}
	return name
}

// Decided implements decide.Observer.
func (ls *limits) Decided(l *descriptors.Limit, o decide.Outcome, hits int64, d *limiter.Decision) {
	c := ls.of(l)
	if c == nil {
		return // of a rule that a reload took away while the request was under way
	}
	c.decisions[o].Add(1)
	switch {
	case hits > 0:
		c.hits[o].Add(uint64(hits))
		switch {
		case o == decide.Allowed:
			if near := ls.nearHits(l.Policy, hits, d.Remaining); near > 0 {
				c.near.Add(uint64(near))
			}
		case o == decide.Denied && d.Known:
			c.known.Add(uint64(hits))
		}
	case hits < 0:
		c.returned.Add(uint64(-hits))
	}
}

// nearHits are those of the hits just charged that lie above the ratio of what can pass at once, rounded down as
// envoyproxy/ratelimit does.
func (ls *limits) nearHits(p *limiter.Policy, hits, remaining int64) int64 {
	most := p.Capacity()
	return min(hits, most-remaining-int64(float64(most)*ls.ratio))
}

func (ls *limits) of(l *descriptors.Limit) *counters {
	if l.ID < 0 {
		return &ls.request
	}
	t := ls.live.Load()
	if l.ID < len(t.slots) && t.slots[l.ID].rule == l.Rule {
		return t.slots[l.ID].counters
	}
	c := t.byLabels[labelsOf(l)]
	if c == nil && t.others > 0 {
		return &ls.other // or of a rule that is gone: who could tell
	}
	return c
}

// Describe implements prometheus.Collector.
func (ls *limits) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{ls.decisions, ls.hits, ls.near, ls.known, ls.returned, ls.domains, ls.count, ls.others} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (ls *limits) Collect(ch chan<- prometheus.Metric) {
	t := ls.live.Load()
	ch <- gauge(ls.domains, float64(t.domains))
	ch <- gauge(ls.count, float64(len(t.slots)))
	ch <- gauge(ls.others, float64(t.others))
	ls.each(func(c *counters) { ls.collect(ch, c) })
}

// each calls f for the counters of every limit.
func (ls *limits) each(f func(c *counters)) {
	f(&ls.request)
	f(&ls.other)
	for _, c := range ls.live.Load().byLabels {
		f(c)
	}
}

// collect shows a limit that was asked. Allowed and denied are there from the first request on, so that rates
// start from 0; the other outcomes once they have happened.
func (ls *limits) collect(ch chan<- prometheus.Metric, c *counters) {
	if c.asked() == 0 {
		return
	}
	for o, name := range outcomeLabels {
		n := c.decisions[o].Load()
		if n == 0 && decide.Outcome(o) != decide.Allowed && decide.Outcome(o) != decide.Denied {
			continue
		}
		ch <- counter(ls.decisions, n, c.domain, c.rule, c.limit, name)
		ch <- counter(ls.hits, c.hits[o].Load(), c.domain, c.rule, c.limit, name)
	}
	ch <- counter(ls.near, c.near.Load(), c.domain, c.rule, c.limit)
	if n := c.known.Load(); n > 0 {
		ch <- counter(ls.known, n, c.domain, c.rule, c.limit)
	}
	if n := c.returned.Load(); n > 0 {
		ch <- counter(ls.returned, n, c.domain, c.rule, c.limit)
	}
}

// asked is how often.
func (c *counters) asked() (n uint64) {
	for o := range c.decisions {
		n += c.decisions[o].Load()
	}
	return n
}

func counter(d *prometheus.Desc, n uint64, labels ...string) prometheus.Metric {
	m, err := prometheus.NewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	if err != nil {
		return prometheus.NewInvalidMetric(d, err)
	}
	return m
}

func gauge(d *prometheus.Desc, v float64, labels ...string) prometheus.Metric {
	m, err := prometheus.NewConstMetric(d, prometheus.GaugeValue, v, labels...)
	if err != nil {
		return prometheus.NewInvalidMetric(d, err)
	}
	return m
}
