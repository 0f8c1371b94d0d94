package metrics

import (
	"regexp"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/weir-ratelimit/weir/internal/decide"
)

// classic shows the counters by the names and labels that envoyproxy/ratelimit's Prometheus sink gives its own: its
// src/stats/prom/default_mapper.yaml, whose rules are one level (key1) or two (key2) deep; deeper ones, and all limits
// of a rule, count together with these.
type classic struct {
	m *Metrics

	hits     []classicHits
	requests *prometheus.Desc
	seconds  *prometheus.Desc
	errors   *prometheus.Desc
	loads    *prometheus.Desc
	refused  *prometheus.Desc
}

// classicHits is one of the counters that a rule has there.
type classicHits struct {
	desc *prometheus.Desc
	of   func(c *counters) uint64
}

// method is the only one of the service.
const method = "ShouldRateLimit"

func newClassic(m *Metrics) *classic {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("ratelimit_service_"+name, help, labels, nil)
	}
	hits := func(name, help string, of func(c *counters) uint64) classicHits {
		return classicHits{desc("rate_limit_"+name, help, "domain", "key1", "key2"), of}
	}
	return &classic{
		m: m,
		hits: []classicHits{
			hits("total_hits", "Hits that a rule was asked for.", func(c *counters) uint64 { return c.sum(decide.Outcomes()...) }),
			hits("over_limit", "Hits that do not fit, in shadow mode, too.", func(c *counters) uint64 {
				return c.sum(decide.Denied, decide.ShadowDenied, decide.QuotaOver, decide.DeniedLocally)
			}),
			hits("within_limit", "Hits that fit.", func(c *counters) uint64 {
				return c.sum(decide.Allowed, decide.Uncharged, decide.AllowedLocally)
			}),
			hits("near_limit", "Allowed hits above --near-limit-ratio of the limit.", func(c *counters) uint64 { return c.near.Load() }),
			hits("over_limit_with_local_cache", "Hits denied without asking Redis.", func(c *counters) uint64 { return c.known.Load() }),
			hits("shadow_mode", "Hits that do not fit, in shadow mode.", func(c *counters) uint64 { return c.sum(decide.ShadowDenied) }),
		},
		requests: desc("total_requests", "Requests.", "grpc_method"),
		seconds:  desc("response_time_seconds", "Time from a decoded request to its response.", "grpc_method"),
		errors:   desc("should_rate_limit_error", "Requests that the store did not decide, and those answered by a gRPC error.", "err_type"),
		loads:    desc("config_load_success", "Loads of changed rules that went live."),
		refused:  desc("config_load_error", "Loads of changed rules that were refused."),
	}
}

// sum is the hits of these outcomes.
func (c *counters) sum(outcomes ...decide.Outcome) uint64 {
	var n uint64
	for _, o := range outcomes {
		n += c.hits[o].Load()
	}
	return n
}

// Describe implements prometheus.Collector.
func (c *classic) Describe(ch chan<- *prometheus.Desc) {
	for _, h := range c.hits {
		ch <- h.desc
	}
	for _, d := range []*prometheus.Desc{c.requests, c.seconds, c.errors, c.loads, c.refused} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *classic) Collect(ch chan<- prometheus.Metric) {
	rules := map[[3]string][]uint64{}
	c.m.each(func(of *counters) {
		if of.asked() == 0 {
			return
		}
		key := of.classic()
		sums := rules[key]
		if sums == nil {
			sums = make([]uint64, len(c.hits))
			rules[key] = sums
		}
		for i, h := range c.hits {
			sums[i] += h.of(of)
		}
	})
	for key, sums := range rules {
		for i, h := range c.hits {
			ch <- counter(h.desc, sums[i], key[:]...)
		}
	}
	c.collectService(ch)
}

func (c *classic) collectService(ch chan<- prometheus.Metric) {
	seconds := read(c.m.requestSeconds).GetHistogram()
	buckets := make(map[float64]uint64, len(seconds.GetBucket()))
	for _, b := range seconds.GetBucket() {
		buckets[b.GetUpperBound()] = b.GetCumulativeCount()
	}
	ch <- counter(c.requests, seconds.GetSampleCount(), method)
	ch <- histogram(c.seconds, seconds.GetSampleCount(), seconds.GetSampleSum(), buckets, method)
	ch <- counter(c.errors, count(c.m.storeTimeouts)+count(c.m.storeNotAsked)+count(c.m.storeErrors), "redis_error")
	ch <- counter(c.errors, c.m.rejections(), "service_error")
	ch <- counter(c.loads, count(c.m.loads))
	ch <- counter(c.refused, count(c.m.loadsRefused))
}

// read is the metric now; one that cannot be read is zero.
func read(m prometheus.Metric) *dto.Metric {
	var now dto.Metric
	if m.Write(&now) != nil {
		return &dto.Metric{}
	}
	return &now
}

func count(c prometheus.Counter) uint64 { return uint64(read(c).GetCounter().GetValue()) }

// ipv4 is where envoyproxy/ratelimit writes _ for the dots, in which it would else see levels.
var ipv4 = regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)

// classicSigns mean something in statsd.
var classicSigns = strings.NewReplacer(":", "_", "|", "_")

// classicText replaces what a name in statsd must not have, as envoyproxy/ratelimit does.
func classicText(s string) string {
	s = classicSigns.Replace(s)
	return ipv4.ReplaceAllStringFunc(s, func(ip string) string { return strings.ReplaceAll(ip, ".", "_") })
}

// classic is domain, key1 and key2: `api_key > path=/checkout*` is api_key and path_/checkout*.
func (l *labels) classic() [3]string {
	key := [3]string{classicText(l.domain)}
	steps := strings.Split(l.rule, " > ")
	for i, step := range steps[:min(2, len(steps))] {
		key[i+1] = classicText(strings.Replace(step, "=", "_", 1))
	}
	if l.rule == "" { // a limit that a request brought along, where no rule matched
		key[1] = l.limit
	}
	return key
}
