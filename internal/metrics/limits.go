package metrics

import (
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-ratelimit/weir/internal/rls"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// limits counts decisions. The counters of a set's limits are resolved when it goes live; a request that was
// matched by the set before it finds them by their labels.
type limits struct {
	live    atomic.Pointer[table]
	request counters // of limits that requests bring along

	decisions, hits, returned, domains, count *prometheus.Desc
}

// table is the counters of one set. It is immutable, except for the counts.
type table struct {
	slots    []slot // by Limit.ID
	byLabels map[labels]*counters
	domains  int
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
	decisions, hits [len(outcomeLabels)]atomic.Uint64 // by rls.Outcome
	returned        atomic.Uint64
}

// outcomeLabels are rls.Outcome's names.
var outcomeLabels = [...]string{
	rls.Allowed:          rls.Allowed.String(),
	rls.Uncharged:        rls.Uncharged.String(),
	rls.Denied:           rls.Denied.String(),
	rls.ShadowDenied:     rls.ShadowDenied.String(),
	rls.QuotaOver:        rls.QuotaOver.String(),
	rls.AllowedOnFailure: rls.AllowedOnFailure.String(),
	rls.DeniedOnFailure:  rls.DeniedOnFailure.String(),
	rls.AllowedLocally:   rls.AllowedLocally.String(),
	rls.DeniedLocally:    rls.DeniedLocally.String(),
}

func newLimits() *limits {
	ofLimit := []string{"domain", "rule", "limit"}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	l := &limits{
		decisions: desc("weir_decisions_total", "Answers of a limit, by outcome. A limit appears with its first request.",
			append(ofLimit, "outcome")...),
		hits:     desc("weir_hits_total", "Cost of the requests that asked a limit, by outcome.", append(ofLimit, "outcome")...),
		returned: desc("weir_hits_returned_total", "Hits that requests gave back.", ofLimit...),
		domains:  desc("weir_rules_domains", "Domains of the live rules."),
		count:    desc("weir_rules_limits", "Limits of the live rules."),
	}
	l.live.Store(&table{})
	l.request.limit = "(request)"
	return l
}

// RulesCompiled makes the set's counters the live ones; it is called just before the set goes live itself. A
// limit that was there before goes on from its counts, one that is gone takes its series with it.
func (ls *limits) RulesCompiled(set *descriptors.Set) {
	before := ls.live.Load()
	t := &table{
		slots:    make([]slot, len(set.Limits())),
		byLabels: make(map[labels]*counters, len(set.Limits())),
		domains:  len(set.Domains()),
	}
	for i, l := range set.Limits() {
		set.Rest()
		name := labelsOf(l)
		c := t.byLabels[name]
		if c == nil {
			c = before.byLabels[name]
		}
		if c == nil {
			c = &counters{labels: name}
		}
		t.slots[i], t.byLabels[name] = slot{l.Rule, c}, c
	}
	ls.live.Store(t)
}

// labelsOf names a limit: by its name, or by its place in the rule, from 1, where the rule has several.
func labelsOf(l *descriptors.Limit) labels {
	name := labels{l.Rule.Domain, l.Rule.Path, l.Name}
	if name.limit != "" || len(l.Rule.Limits) < 2 {
		return name
	}
	for i, sibling := range l.Rule.Limits {
		if sibling.ID == l.ID {
			name.limit = strconv.Itoa(i + 1)
		}
	}
	return name
}

// Decided implements rls.Observer.
func (ls *limits) Decided(l *descriptors.Limit, o rls.Outcome, hits int64) {
	c := ls.of(l)
	if c == nil {
		return // of a rule that a reload took away while the request was under way
	}
	c.decisions[o].Add(1)
	switch {
	case hits > 0:
		c.hits[o].Add(uint64(hits))
	case hits < 0:
		c.returned.Add(uint64(-hits))
	}
}

func (ls *limits) of(l *descriptors.Limit) *counters {
	if l.ID < 0 {
		return &ls.request
	}
	t := ls.live.Load()
	if l.ID < len(t.slots) && t.slots[l.ID].rule == l.Rule {
		return t.slots[l.ID].counters
	}
	return t.byLabels[labelsOf(l)]
}

// Describe implements prometheus.Collector.
func (ls *limits) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{ls.decisions, ls.hits, ls.returned, ls.domains, ls.count} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (ls *limits) Collect(ch chan<- prometheus.Metric) {
	t := ls.live.Load()
	ch <- gauge(ls.domains, float64(t.domains))
	ch <- gauge(ls.count, float64(len(t.slots)))
	ls.collect(ch, &ls.request)
	for _, c := range t.byLabels {
		ls.collect(ch, c)
	}
}

// collect shows a limit that was asked. Allowed and denied are there from the first request on, so that rates
// start from 0; the other outcomes once they have happened.
func (ls *limits) collect(ch chan<- prometheus.Metric, c *counters) {
	var asked uint64
	for o := range c.decisions {
		asked += c.decisions[o].Load()
	}
	if asked == 0 {
		return
	}
	for o, name := range outcomeLabels {
		n := c.decisions[o].Load()
		if n == 0 && rls.Outcome(o) != rls.Allowed && rls.Outcome(o) != rls.Denied {
			continue
		}
		ch <- counter(ls.decisions, n, c.domain, c.rule, c.limit, name)
		ch <- counter(ls.hits, c.hits[o].Load(), c.domain, c.rule, c.limit, name)
	}
	if n := c.returned.Load(); n > 0 {
		ch <- counter(ls.returned, n, c.domain, c.rule, c.limit)
	}
}

func counter(d *prometheus.Desc, n uint64, labels ...string) prometheus.Metric {
	m, err := prometheus.NewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	if err != nil {
		return prometheus.NewInvalidMetric(d, err)
	}
	return m
}

func gauge(d *prometheus.Desc, v float64) prometheus.Metric {
	m, err := prometheus.NewConstMetric(d, prometheus.GaugeValue, v)
	if err != nil {
		return prometheus.NewInvalidMetric(d, err)
	}
	return m
}
