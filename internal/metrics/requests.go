package metrics

import (
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// requests counts whole requests, where limits counts what each limit decided of them. The counters of a set's domains
// are resolved when it goes live.
type requests struct {
	maxDomains int // that have counters of their own
	live       atomic.Pointer[domainTable]
	other      answers                                  // of all other domains, and of those without rules
	errors     [codes.Unauthenticated + 1]atomic.Uint64 // by gRPC code

	total, rejected *prometheus.Desc
}

// answers are the requests of one domain, by Envoy's code.
type answers struct {
	domain        string
	ok, overLimit atomic.Uint64
}

// domainTable is the counters of one set. It is immutable, except for the counts.
type domainTable struct {
	slots  []domainSlot // by Domain.ID
	byName map[string]*answers
}

// domainSlot is a domain's counters, and the domain that tells whether one of that ID is this set's.
type domainSlot struct {
	domain *descriptors.Domain
	*answers
}

func newRequests(maxDomains int) *requests {
	r := &requests{
		maxDomains: maxDomains,
		total: prometheus.NewDesc("weir_requests_total",
			"Requests that were decided, by the domain and by what Envoy was told. code: ok, over_limit. "+
				"A domain without rules is (other), as are domains beyond --metrics-max-rules.", []string{"domain", "code"}, nil),
		rejected: prometheus.NewDesc("weir_requests_rejected_total",
			"Requests answered by a gRPC error, by its code: also those that are too large (ResourceExhausted) or cannot be decoded (Internal). "+
				"weir_requests_total does not have them.", []string{"code"}, nil),
	}
	r.other.domain = otherRules
	r.live.Store(&domainTable{})
	return r
}

// compiled makes the counters of the set's domains the live ones. A domain that was there before keeps its counts, one
// that is gone takes its series with it.
func (r *requests) compiled(set *descriptors.Set) {
	before := r.live.Load()
	domains := set.Domains()
	t := &domainTable{
		slots:  make([]domainSlot, len(domains)),
		byName: make(map[string]*answers, min(len(domains), r.maxDomains)),
	}
	for i, d := range domains {
		if i >= r.maxDomains {
			t.slots[i] = domainSlot{d, &r.other}
			continue
		}
		a := before.byName[d.Name()]
		if a == nil {
			a = &answers{domain: strings.Clone(d.Name())} // outlives the rules
		}
		t.slots[i], t.byName[a.domain] = domainSlot{d, a}, a
	}
	r.live.Store(t)
}

// Answered implements decide.Observer.
func (r *requests) Answered(d *descriptors.Domain, denied bool) {
	a := r.of(d)
	if denied {
		a.overLimit.Add(1)
	} else {
		a.ok.Add(1)
	}
}

func (r *requests) of(d *descriptors.Domain) *answers {
	if d == nil {
		return &r.other
	}
	t := r.live.Load()
	if id := d.ID(); id < len(t.slots) && t.slots[id].domain == d {
		return t.slots[id].answers
	}
	if a := t.byName[d.Name()]; a != nil { // matched by the set before
		return a
	}
	return &r.other
}

// Rejected counts a request that was answered by an error.
func (r *requests) Rejected(code codes.Code) {
	if int(code) >= len(r.errors) {
		code = codes.Unknown
	}
	r.errors[code].Add(1)
}

// rejections are those of all codes.
func (r *requests) rejections() (n uint64) {
	for code := range r.errors {
		n += r.errors[code].Load()
	}
	return n
}

// Describe implements prometheus.Collector.
func (r *requests) Describe(ch chan<- *prometheus.Desc) {
	ch <- r.total
	ch <- r.rejected
}

// Collect implements prometheus.Collector. A gRPC code appears with its first request.
func (r *requests) Collect(ch chan<- prometheus.Metric) {
	for _, a := range r.live.Load().byName {
		r.collect(ch, a)
	}
	r.collect(ch, &r.other)
	for code := range r.errors {
		if n := r.errors[code].Load(); n > 0 {
			ch <- counter(r.rejected, n, codes.Code(code).String())
		}
	}
}

// collect shows both codes of a domain from the start, so that a rate or ratio of them never lacks one.
func (r *requests) collect(ch chan<- prometheus.Metric, a *answers) {
	ch <- counter(r.total, a.ok.Load(), a.domain, "ok")
	ch <- counter(r.total, a.overLimit.Load(), a.domain, "over_limit")
}
