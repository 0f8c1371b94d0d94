package metrics

import (
	"strings"
	"sync/atomic"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

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
