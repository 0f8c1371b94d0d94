package metrics

import (
	"cmp"
	"iter"
	"maps"
	"strings"
	"sync/atomic"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// ruleCounts counts each limit's decisions and each domain's requests. Prepare assigns a set's counters before it
// becomes active. A request that the previous set has matched finds its counters by their labels.
type ruleCounts struct {
	maxRules  int     // maximum number of rules, and of domains, with their own counters
	ratio     float64 // part of a limit above which a hit is near the limit
	live      atomic.Pointer[setCounters]
	request   limitCounters  // counters of limits that come with requests
	other     limitCounters  // counters of the limits of all other rules
	elsewhere domainCounters // counters of all other domains, and of requests without rules
}

// setCounters has the counters of one set. Only the counts change.
type setCounters struct {
	limits   []slot[*descriptors.Rule, limitCounters] // counters by Limit.ID
	byLabels map[adminapi.LimitName]*limitCounters
	domains  []slot[*descriptors.Domain, domainCounters] // counters by Domain.ID
	byName   map[string]*domainCounters
	others   int // number of rules without their own counters
}

// slot has the counters of a limit or domain. of identifies the rule or domain, to detect those of another set.
type slot[Of comparable, Counters any] struct {
	of       Of
	counters *Counters
}

type limitCounters struct {
	adminapi.LimitName
	decisions, hits        outcomeCounts
	byEnvoys               outcomeCounts // requests that Envoys decided by quotas
	near, cached, refunded atomic.Uint64 // numbers of hits
	reservation            reservationCounts

	sampled sampled // used only by Sample
}

// reservationCounts counts a limit with a reservation. It stays 0 for other limits.
type reservationCounts struct {
	reserved             atomic.Uint64 // hits charged at starts
	charged, realCost    atomic.Int64  // of ended requests with a token: hits charged at the start, and real cost
	found, without, lost atomic.Uint64 // numbers of ends: with a token, without a token, and lost
}

// domainCounters counts a domain's requests by the code that Envoy received.
type domainCounters struct {
	domain        string
	ok, overLimit atomic.Uint64

	sampledOK, sampledOver uint64 // their values at the last Sample
}

const outcomeCount = decide.DeniedLocally + 1

// outcomeCounts are indexed by decide.Outcome.
type outcomeCounts [outcomeCount]atomic.Uint64

// otherRules is the label of rules and domains without their own series.
const otherRules = "(other)"

func newCounts(maxRules int, ratio float64) *ruleCounts {
	cs := &ruleCounts{maxRules: maxRules, ratio: ratio}
	cs.live.Store(&setCounters{})
	cs.request.Limit = "(request)"
	cs.other.LimitName = adminapi.LimitName{Domain: otherRules, Rule: otherRules, Limit: otherRules}
	cs.elsewhere.domain = otherRules
	return cs
}

// Prepare creates the counters of the next rules, before these become active. A limit or domain of both sets keeps its
// counts; removed limits and domains lose their series. The first MaxRules rules and domains have their own counters.
func (m *Metrics) Prepare(set *descriptors.Set) {
	cs, before := m.counts, m.counts.live.Load()
	t := &setCounters{
		limits:   make([]slot[*descriptors.Rule, limitCounters], len(set.Limits())),
		byLabels: make(map[adminapi.LimitName]*limitCounters, min(len(set.Limits()), cs.maxRules)),
		domains:  make([]slot[*descriptors.Domain, domainCounters], len(set.Domains())),
		byName:   make(map[string]*domainCounters, min(len(set.Domains()), cs.maxRules)),
	}
	rules := 0
	for i, l := range set.Limits() {
		if i == 0 || l.Rule != set.Limits()[i-1].Rule { // a rule's limits are adjacent
			rules++
		}
		if rules > cs.maxRules {
			t.limits[i].of, t.limits[i].counters = l.Rule, &cs.other
			continue
		}
		name := adminapi.NameOf(l)
		c := cmp.Or(t.byLabels[name], before.byLabels[name])
		if c == nil { // labels must not keep the rules' memory
			c = &limitCounters{LimitName: adminapi.LimitName{
				Domain: strings.Clone(name.Domain), Rule: strings.Clone(name.Rule), Limit: strings.Clone(name.Limit),
			}}
		}
		t.limits[i].of, t.limits[i].counters, t.byLabels[c.LimitName] = l.Rule, c, c
	}
	t.others = max(0, rules-cs.maxRules)
	for i, d := range set.Domains() {
		if i >= cs.maxRules {
			t.domains[i].of, t.domains[i].counters = d, &cs.elsewhere
			continue
		}
		c := before.byName[d.Name()]
		if c == nil {
			c = &domainCounters{domain: strings.Clone(d.Name())} // as above
		}
		t.domains[i].of, t.domains[i].counters, t.byName[c.domain] = d, c, c
	}
	cs.live.Store(t)
}

// Decided implements decide.Observer.
func (m *Metrics) Decided(l *descriptors.Limit, o decide.Outcome, hits int64, d *limiter.Decision) {
	c := m.counts.limit(l)
	if c == nil {
		return // a reload removed the rule during the request
	}
	c.decisions[o].Add(1)
	switch {
	case hits > 0:
		c.hits[o].Add(uint64(hits))
		switch {
		case o == decide.Allowed:
			if near := m.counts.nearHits(l.Policy, hits, d.Remaining); near > 0 {
				c.near.Add(uint64(near))
			}
			if l.Reservation != nil && d.TakenAt > 0 { // a start; an end has no TakenAt
				c.reservation.reserved.Add(uint64(hits))
			}
		case o == decide.Denied && d.Cached:
			c.cached.Add(uint64(hits))
		}
	case hits < 0:
		c.refunded.Add(uint64(-hits))
	}
}

// Ended implements decide.Observer.
func (m *Metrics) Ended(l *descriptors.Limit, charged, realCost int64) {
	c := m.counts.limit(l)
	switch {
	case c == nil: // as in Decided
	case charged > 0:
		c.reservation.found.Add(1)
		c.reservation.charged.Add(charged)
		c.reservation.realCost.Add(realCost)
	default:
		c.reservation.without.Add(1)
	}
}

// NotEnded implements decide.Observer.
func (m *Metrics) NotEnded(l *descriptors.Limit) {
	if c := m.counts.limit(l); c != nil {
		c.reservation.lost.Add(1)
	}
}

// Reservation returns the counts of a limit's reservation since the process started. It returns nil for a limit without
// a reservation, and for a limit without its own counters.
func (m *Metrics) Reservation(l *descriptors.Limit) *adminapi.ReservationCounts {
	c := m.counts.limit(l)
	if l.Reservation == nil || c == nil || c.LimitName != adminapi.NameOf(l) {
		return nil
	}
	r := &c.reservation
	charged, realCost := r.charged.Load(), r.realCost.Load()
	counts := &adminapi.ReservationCounts{
		Charged: r.reserved.Load(), Corrected: realCost - charged,
		Ends: r.found.Load(), EndsWithoutToken: r.without.Load(), EndsLost: r.lost.Load(),
	}
	if charged > 0 {
		ratio := float64(realCost) / float64(charged)
		counts.RealPerCharged = &ratio
	}
	return counts
}

// ReportedByEnvoys counts requests that Envoys reported, for any limit.
func (m *Metrics) ReportedByEnvoys(allowed, denied uint64) {
	m.allowedByEnvoys.Add(allowed)
	m.deniedByEnvoys.Add(denied)
}

// DecidedByEnvoys counts requests that Envoys decided by quotas of a limit.
func (m *Metrics) DecidedByEnvoys(l *descriptors.Limit, o decide.Outcome, requests uint64) {
	if c := m.counts.limit(l); c != nil {
		c.byEnvoys[o].Add(requests)
	}
}

// nearHits returns the number of the charged hits that are above the ratio of the capacity. It rounds down, as
// envoyproxy/ratelimit does.
func (cs *ruleCounts) nearHits(p *limiter.Policy, hits, remaining int64) int64 {
	capacity := p.Capacity()
	return min(hits, capacity-remaining-int64(float64(capacity)*cs.ratio))
}

func (cs *ruleCounts) limit(l *descriptors.Limit) *limitCounters {
	if l.ID < 0 {
		return &cs.request
	}
	t := cs.live.Load()
	if l.ID < len(t.limits) && t.limits[l.ID].of == l.Rule {
		return t.limits[l.ID].counters
	}
	c := t.byLabels[adminapi.NameOf(l)]
	if c == nil && t.others > 0 {
		return &cs.other // the rule may have been removed instead, which the labels do not show
	}
	return c
}

func (cs *ruleCounts) domain(d *descriptors.Domain) *domainCounters {
	if d == nil {
		return &cs.elsewhere
	}
	t := cs.live.Load()
	if id := d.ID(); id < len(t.domains) && t.domains[id].of == d {
		return t.domains[id].counters
	}
	if c := t.byName[d.Name()]; c != nil { // matched by the previous set
		return c
	}
	return &cs.elsewhere
}

// allLimits yields the counters of all limits.
func (cs *ruleCounts) allLimits(yield func(*limitCounters) bool) {
	if !yield(&cs.request) || !yield(&cs.other) {
		return
	}
	maps.Values(cs.live.Load().byLabels)(yield)
}

// allDomains yields the counters of all domains.
func (cs *ruleCounts) allDomains(yield func(*domainCounters) bool) {
	if yield(&cs.elsewhere) {
		maps.Values(cs.live.Load().byName)(yield)
	}
}

// having yields the counters of all limits that have had an outcome.
func (cs *ruleCounts) having(outcomes func(*limitCounters) *outcomeCounts) iter.Seq[*limitCounters] {
	return func(yield func(*limitCounters) bool) {
		for c := range cs.allLimits {
			if outcomes(c).any() && !yield(c) {
				return
			}
		}
	}
}

// reserving yields the counters of all limits whose reservation has had a start or an end.
func (cs *ruleCounts) reserving(yield func(*limitCounters) bool) {
	for c := range cs.allLimits {
		r := &c.reservation
		if r.reserved.Load()+r.found.Load()+r.without.Load()+r.lost.Load() > 0 && !yield(c) {
			return
		}
	}
}

// any reports whether any count is not 0.
func (counts *outcomeCounts) any() bool {
	for o := range counts {
		if counts[o].Load() > 0 {
			return true
		}
	}
	return false
}

// Decisions returns how often a limit had each outcome, by decide.Outcome, including requests that Envoys decided by
// quotas. It returns nil for a limit without its own counters.
func (m *Metrics) Decisions(l *descriptors.Limit) []uint64 {
	c := m.counts.limit(l)
	if c == nil || c.LimitName != adminapi.NameOf(l) {
		return nil
	}
	all := make([]uint64, outcomeCount)
	for o := range all {
		all[o] = c.decisions[o].Load() + c.byEnvoys[o].Load()
	}
	return all
}

// Answered implements decide.Observer.
func (m *Metrics) Answered(d *descriptors.Domain, denied bool) {
	c := m.counts.domain(d)
	if denied {
		c.overLimit.Add(1)
	} else {
		c.ok.Add(1)
	}
}

// sampled has the values of a limit's counters at the last Sample.
type sampled struct{ allowed, denied, hits, near, allowedByEnvoys, deniedByEnvoys uint64 }

// Sample yields the growth of each limit's counters since the last call, if it is not 0, and returns all requests'
// counts. It omits limits of requests and limits without their own series. It is the Sampler of admin.History.
func (m *Metrics) Sample(yield func(adminapi.LimitCounts)) (total adminapi.Counts) {
	m.sampling.Lock()
	defer m.sampling.Unlock()
	for d := range m.counts.allDomains {
		total.Allowed += grown(&d.sampledOK, d.ok.Load())
		total.Denied += grown(&d.sampledOver, d.overLimit.Load())
	}
	total.Allowed += grown(&m.sampledByEnvoys.Allowed, m.allowedByEnvoys.Load())
	total.Denied += grown(&m.sampledByEnvoys.Denied, m.deniedByEnvoys.Load())
	for c := range m.counts.allLimits {
		counts := c.sample()
		if counts == (adminapi.Counts{}) {
			continue
		}
		total.Near += counts.Near
		if c == &m.counts.other || c == &m.counts.request {
			continue
		}
		yield(adminapi.LimitCounts{LimitName: c.LimitName, Counts: counts})
	}
	return total
}

// sample returns the growth of the counters since the last call. It converts hits near the limit to requests by their
// part of the charged hits, which is exact if each request costs one hit.
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

// grown returns now - *before, and sets *before to now.
func grown(before *uint64, now uint64) uint64 {
	n := now - *before
	*before = now
	return n
}
