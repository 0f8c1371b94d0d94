package metrics

import (
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/history"
)

// sampled is the values of a limit's counters at the last Sample.
type sampled struct{ allowed, denied, hits, near uint64 }

// Sample yields how much the counters of each limit have grown since the last call, for those that have, and returns
// how many requests were answered. Limits without series of their own, and those that requests bring along, have no
// name. It implements history.Sampler.
func (m *Metrics) Sample(yield func(history.Name, history.Counts)) (total history.Counts) {
	m.sampling.Lock()
	defer m.sampling.Unlock()
	for d := range m.domains.all {
		total.Allowed += grown(&d.sampledOK, d.ok.Load())
		total.Denied += grown(&d.sampledOver, d.overLimit.Load())
	}
	for c := range m.limits.all {
		counts := c.sample()
		if counts == (history.Counts{}) {
			continue
		}
		total.Near += counts.Near
		if c == &m.limits.other || c == &m.limits.request {
			yield(history.Name{}, counts)
			continue
		}
		yield(history.Name{Domain: c.domain, Rule: c.rule, Limit: c.limit}, counts)
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
func (c *limitCounters) sample() (s history.Counts) {
	near, hits := grown(&c.sampled.near, c.near.Load()), grown(&c.sampled.hits, c.hits[decide.Allowed].Load())
	s.Allowed = grown(&c.sampled.allowed,
		sum(&c.decisions, decide.Allowed, decide.AllowedOnFailure, decide.AllowedLocally))
	s.Denied = grown(&c.sampled.denied, sum(&c.decisions, decide.Denied, decide.ShadowDenied, decide.QuotaOver,
		decide.DeniedOnFailure, decide.DeniedLocally))
	if hits > 0 && near > 0 {
		s.Near = uint64(float64(s.Allowed)*min(1, float64(near)/float64(hits)) + 0.5)
	}
	return s
}

func sum(counts *outcomeCounts, of ...decide.Outcome) (n uint64) {
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
