package metrics

import (
	"regexp"
	"strings"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/metrics/metric"
)

// The metrics of envoyproxy/ratelimit, with the names and labels of its Prometheus sink
// (src/stats/prom/default_mapper.yaml). In that sink, rules have one level (key1) or two (key2). Weir counts deeper
// rules, and all limits of a rule, together under the first two levels.

var classicRuleRows = []metric.Row[*classicRule]{
	classicCounter("total_hits", "Hits of a rule.",
		func(r *classicRule) uint64 { return r.hits.sum(decide.Outcomes()...) }),
	classicCounter("over_limit", "Hits that do not fit, also in shadow mode.",
		func(r *classicRule) uint64 {
			return r.hits.sum(decide.Denied, decide.ShadowDenied, decide.QuotaOver, decide.DeniedLocally)
		}),
	classicCounter("within_limit", "Hits that fit.",
		func(r *classicRule) uint64 {
			return r.hits.sum(decide.Allowed, decide.Uncharged, decide.AllowedLocally)
		}),
	classicCounter("near_limit", "Allowed hits above --near-limit-ratio of the limit.",
		func(r *classicRule) uint64 { return r.near }),
	classicCounter("over_limit_with_local_cache", "Hits denied from the cache, without Redis.",
		func(r *classicRule) uint64 { return r.cached }),
	classicCounter("shadow_mode", "Hits that do not fit, in shadow mode.",
		func(r *classicRule) uint64 { return r.hits.sum(decide.ShadowDenied) }),
}

var classicRows = []metric.Row[*Metrics]{
	metric.Counters("ratelimit_service_total_requests", "grpc_method", "Requests.",
		func(m *Metrics, w metric.Writer) { metric.Put(w, m.Requests(), "ShouldRateLimit") }),
	metric.Histograms("ratelimit_service_response_time_seconds", "grpc_method",
		"Time from request to response.",
		func(m *Metrics, w metric.Writer) {
			h := m.requestHistogram()
			upTo := make(map[float64]uint64, len(h.GetBucket()))
			for _, b := range h.GetBucket() {
				upTo[b.GetUpperBound()] = b.GetCumulativeCount()
			}
			w.Histogram(h.GetSampleCount(), h.GetSampleSum(), upTo, "ShouldRateLimit")
		}),
	metric.Counters("ratelimit_service_should_rate_limit_error", "err_type",
		"Requests that the store did not decide, or answered with a gRPC error.",
		func(m *Metrics, w metric.Writer) {
			var rejected uint64
			for code := range m.rejected {
				rejected += m.rejected[code].Load()
			}
			e := &m.storeErrors
			metric.Put(w, e.timeout.Load()+e.breakerOpen.Load()+e.unreachable.Load(), "redis_error")
			metric.Put(w, rejected, "service_error")
		}),
}

// classicMetrics returns the metrics of envoyproxy/ratelimit.
func (m *Metrics) classicMetrics() []metric.Group {
	return []metric.Group{metric.Each(m.classicRules, classicRuleRows...), metric.Of(m.self, classicRows...)}
}

func classicCounter(name, help string, value func(*classicRule) uint64) metric.Row[*classicRule] {
	return metric.Counters("ratelimit_service_rate_limit_"+name, "domain key1 key2", help,
		func(r *classicRule, w metric.Writer) { metric.Put(w, value(r), r.key[:]...) })
}

// classicRule has the hits of all limits that envoyproxy/ratelimit counts as one rule.
type classicRule struct {
	key          [3]string // domain, key1, key2
	hits         outcomeCounts
	near, cached uint64
}

// classicRules yields the rules that have had requests.
func (m *Metrics) classicRules(yield func(*classicRule) bool) {
	rules := map[[3]string]*classicRule{}
	for c := range m.counts.having(decidedHere) {
		key := c.classicKey()
		r := rules[key]
		if r == nil {
			r = &classicRule{key: key}
			rules[key] = r
		}
		for o := range c.hits {
			r.hits[o].Add(c.hits[o].Load())
		}
		r.near, r.cached = r.near+c.near.Load(), r.cached+c.cached.Load()
	}
	for _, r := range rules {
		if !yield(r) {
			return
		}
	}
}

// classicKey returns domain, key1 and key2: `api_key > path=/checkout*` is api_key and path_/checkout*.
func (c *limitCounters) classicKey() [3]string {
	key := [3]string{classicText(c.Domain)}
	levels := descriptors.SplitPath(c.Rule)
	for i, level := range levels[:min(2, len(levels))] {
		key[i+1] = classicText(level[0] + level[1])
		if strings.HasPrefix(level[1], "=") {
			key[i+1] = classicText(level[0] + "_" + level[1][1:])
		}
	}
	if c.Rule == "" { // the request brought its own limit, and matches no rule
		key[1] = c.Limit
	}
	return key
}

var (
	// ipv4 matches addresses, in which envoyproxy/ratelimit replaces dots, because dots separate levels in statsd.
	ipv4 = regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)
	// classicSigns replaces characters with a meaning in statsd.
	classicSigns = strings.NewReplacer(":", "_", "|", "_")
)

// classicText replaces characters that a name in statsd must not have, as envoyproxy/ratelimit does.
func classicText(s string) string {
	return ipv4.ReplaceAllStringFunc(classicSigns.Replace(s), func(ip string) string {
		return strings.ReplaceAll(ip, ".", "_")
	})
}
