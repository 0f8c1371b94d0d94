package metrics

import (
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/weir-ratelimit/weir/internal/adminapi"
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
	byEnvoys              outcomeCounts // requests that Envoys decided by quotas
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

// DecidedByEnvoys counts requests that Envoys decided by their quotas of a limit.
func (m *Metrics) DecidedByEnvoys(l *descriptors.Limit, o decide.Outcome, requests uint64) {
	if c := m.limits.of(l); c != nil {
		c.byEnvoys[o].Add(requests)
	}
}

// AnsweredByEnvoys counts requests that Envoys decided by themselves, whatever limits they have.
func (m *Metrics) AnsweredByEnvoys(allowed, denied uint64) {
	m.envoys.allowed.Add(allowed)
	m.envoys.denied.Add(denied)
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

func (c *limitCounters) isAsked() bool { return c.decisions.any() }

// askedByEnvoys yields the counters of every limit by whose quotas Envoys decided requests.
func (ls *limits) askedByEnvoys(yield func(*limitCounters) bool) {
	for c := range ls.all {
		if c.byEnvoys.any() && !yield(c) {
			return
		}
	}
}

// any reports whether there was any outcome.
func (counts *outcomeCounts) any() bool {
	for o := range counts {
		if counts[o].Load() > 0 {
			return true
		}
	}
	return false
}

// Decisions returns how often a limit had each outcome, by decide.Outcome, and how often in requests that Envoys
// decided by quotas. They are nil for a limit without counters of its own.
func (m *Metrics) Decisions(l *descriptors.Limit) (here, byEnvoys []uint64) {
	c := m.limits.of(l)
	if c == nil || c.labels != labelsOf(l) {
		return nil, nil
	}
	return c.decisions.load(), c.byEnvoys.load()
}

func (counts *outcomeCounts) load() []uint64 {
	all := make([]uint64, len(counts))
	for o := range all {
		all[o] = counts[o].Load()
	}
	return all
}

// domains counts whole requests, where limits counts what each limit decided. A set's counters are resolved when it
// goes live.
type domains struct {
	maxDomains int // with counters of their own
	live       atomic.Pointer[domainTable]
	other      domainCounters // of all other domains, and of requests without rules
}

// domainCounters are a domain's, by the code that Envoy received.
type domainCounters struct {
	domain        string
	ok, overLimit atomic.Uint64

	sampledOK, sampledOver uint64 // their values at the last Sample
}

// domainTable is the counters of one set. It is immutable, except for the counts.
type domainTable struct {
	slots  []domainSlot // by Domain.ID
	byName map[string]*domainCounters
}

// domainSlot is a domain's counters, and the domain, by which of recognizes a domain of another set.
type domainSlot struct {
	domain *descriptors.Domain
	*domainCounters
}

func newDomains(maxDomains int) *domains {
	ds := &domains{maxDomains: maxDomains}
	ds.other.domain = otherRules
	ds.live.Store(&domainTable{})
	return ds
}

// compiled makes the counters of the set's domains the live ones. A domain that both sets have keeps its counts; a
// domain that is gone loses its series.
func (ds *domains) compiled(set *descriptors.Set) {
	before := ds.live.Load()
	all := set.Domains()
	t := &domainTable{
		slots:  make([]domainSlot, len(all)),
		byName: make(map[string]*domainCounters, min(len(all), ds.maxDomains)),
	}
	for i, d := range all {
		if i >= ds.maxDomains {
			t.slots[i] = domainSlot{d, &ds.other}
			continue
		}
		c := before.byName[d.Name()]
		if c == nil {
			c = &domainCounters{domain: strings.Clone(d.Name())} // outlives the rules
		}
		t.slots[i], t.byName[c.domain] = domainSlot{d, c}, c
	}
	ds.live.Store(t)
}

// Answered implements decide.Observer.
func (m *Metrics) Answered(d *descriptors.Domain, denied bool) {
	c := m.domains.of(d)
	if denied {
		c.overLimit.Add(1)
	} else {
		c.ok.Add(1)
	}
}

func (ds *domains) of(d *descriptors.Domain) *domainCounters {
	if d == nil {
		return &ds.other
	}
	t := ds.live.Load()
	if id := d.ID(); id < len(t.slots) && t.slots[id].domain == d {
		return t.slots[id].domainCounters
	}
	if c := t.byName[d.Name()]; c != nil { // matched by the set before
		return c
	}
	return &ds.other
}

// all yields the counters of every domain.
func (ds *domains) all(yield func(*domainCounters) bool) {
	if !yield(&ds.other) {
		return
	}
	for _, c := range ds.live.Load().byName {
		if !yield(c) {
			return
		}
	}
}

// sampled is the values of a limit's counters at the last Sample.
type sampled struct{ allowed, denied, hits, near, allowedByEnvoys, deniedByEnvoys uint64 }

// Sample yields how much the counters of each limit have grown since the last call, for those that have, and returns
// how many requests were answered. Limits without series of their own, and those that requests bring along, have no
// domain. It is the Sampler of admin.History.
func (m *Metrics) Sample(yield func(adminapi.LimitCounts)) (total adminapi.Counts) {
	m.sampling.Lock()
	defer m.sampling.Unlock()
	for d := range m.domains.all {
		total.Allowed += grown(&d.sampledOK, d.ok.Load())
		total.Denied += grown(&d.sampledOver, d.overLimit.Load())
	}
	total.Allowed += grown(&m.envoys.sampledAllowed, m.envoys.allowed.Load())
	total.Denied += grown(&m.envoys.sampledDenied, m.envoys.denied.Load())
	for c := range m.limits.all {
		counts := c.sample()
		if counts == (adminapi.Counts{}) {
			continue
		}
		total.Near += counts.Near
		if c == &m.limits.other || c == &m.limits.request {
			yield(adminapi.LimitCounts{Counts: counts})
			continue
		}
		yield(adminapi.LimitCounts{Domain: c.domain, Rule: c.rule, Limit: c.limit, Counts: counts})
	}
	return total
}

// all yields the counters of every limit.
func (ls *limits) all(yield func(*limitCounters) bool) {
	if !yield(&ls.request) || !yield(&ls.other) {
		return
	}
	for _, c := range ls.live.Load().byLabels {
		if !yield(c) {
			return
		}
	}
}

// sample returns how much the counters have grown since the last call. Hits near the limit become requests by their
// share of the hits that were charged, which is exact where a request costs one hit.
func (c *limitCounters) sample() (s adminapi.Counts) {
	near, hits := grown(&c.sampled.near, c.near.Load()), grown(&c.sampled.hits, c.hits[decide.Allowed].Load())
	s.Allowed = grown(&c.sampled.allowed, c.decisions.allowed())
	s.Denied = grown(&c.sampled.denied, c.decisions.denied())
	if hits > 0 && near > 0 {
		s.Near = uint64(float64(s.Allowed)*min(1, float64(near)/float64(hits)) + 0.5)
	}
	s.Allowed += grown(&c.sampled.allowedByEnvoys, c.byEnvoys.allowed())
	s.Denied += grown(&c.sampled.deniedByEnvoys, c.byEnvoys.denied())
	return s
}

func (counts *outcomeCounts) allowed() uint64 {
	return counts.sum(decide.Allowed, decide.AllowedOnFailure, decide.AllowedLocally)
}

func (counts *outcomeCounts) denied() uint64 {
	return counts.sum(decide.Denied, decide.ShadowDenied, decide.QuotaOver, decide.DeniedOnFailure, decide.DeniedLocally)
}

func (counts *outcomeCounts) sum(of ...decide.Outcome) (n uint64) {
	for _, o := range of {
		n += counts[o].Load()
	}
	return n
}

// grown returns how much a counter has grown since before, which becomes now.
func grown(before *uint64, now uint64) uint64 {
	n := now - *before
	*before = now
	return n
}
