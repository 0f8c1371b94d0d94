package metrics

import (
	"google.golang.org/grpc/codes"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/fileread"
	"github.com/weir-ratelimit/weir/internal/metrics/metric"
)

// This file and classic.go have the metrics of decisions. The parts of the process have their own metrics.

// byEnvoy is a label value that weir_decisions_total does not have, so that the two metrics can be added.
const byEnvoy = "envoy"

var requestSecondsRow = metric.Description{
	Name: "weir_request_seconds", Type: "histogram",
	Help: "Time from request to response, including errors.",
}

var takeSecondsRow = metric.Description{
	Name: "weir_store_take_seconds", Type: "histogram", Labels: []string{"store"},
	Help: "Time that a request waited for Redis, including errors, without renewals of leases. A request that uses " +
		"several stores counts under the store of its first limit.",
}

// self is the source of metrics that m counts.
func (m *Metrics) self() *Metrics { return m }

// requestMetrics returns the metrics of decisions.
func (m *Metrics) requestMetrics() []metric.Group {
	return []metric.Group{
		metric.Measured{Collector: m.requestSeconds, Description: requestSecondsRow},
		metric.Measured{Collector: m.takeSeconds, Description: takeSecondsRow},
		metric.Each(m.counts.having(decidedHere),
			metric.Counters("weir_decisions_total", "domain rule limit outcome",
				"Decisions of a limit, by outcome. A limit appears with its first request.",
				byOutcome(decidedHere, decidedHere)),
			metric.Counters("weir_hits_total", "domain rule limit outcome",
				"Hits of a limit (costs of requests), by outcome.",
				byOutcome(decidedHere, func(c *limitCounters) *outcomeCounts { return &c.hits })),
			metric.Counters("weir_hits_near_limit_total", "domain rule limit",
				"Allowed hits above --near-limit-ratio of the limit or its burst.",
				func(c *limitCounters, w metric.Writer) { metric.Put(w, c.near.Load(), c.Domain, c.Rule, c.Limit) }),
			metric.Counters("weir_hits_cached_denied_total", "domain rule limit",
				"Hits denied from the cache, without Redis.",
				func(c *limitCounters, w metric.Writer) { putIfAny(w, c.cached.Load(), c.Domain, c.Rule, c.Limit) }),
			metric.Counters("weir_hits_refunded_total", "domain rule limit",
				"Hits refunded by negative costs.",
				func(c *limitCounters, w metric.Writer) { putIfAny(w, c.refunded.Load(), c.Domain, c.Rule, c.Limit) }),
		),
		metric.Each(m.counts.reserving,
			metric.Counters("weir_reserved_hits_total", "domain rule limit",
				"Hits that limits with a reservation charged at the starts of requests.",
				func(c *limitCounters, w metric.Writer) {
					metric.Put(w, c.reservation.reserved.Load(), c.Domain, c.Rule, c.Limit)
				}),
			metric.Counters("weir_reservation_hits_total", "domain rule limit kind",
				"Hits of ended requests with a token. kind: charged (at the start), real (reported at the end). If real divided "+
					"by charged stays far below 1, lower the estimate.",
				func(c *limitCounters, w metric.Writer) {
					metric.Put(w, c.reservation.charged.Load(), c.Domain, c.Rule, c.Limit, "charged")
					metric.Put(w, c.reservation.realCost.Load(), c.Domain, c.Rule, c.Limit, "real")
				}),
			metric.Counters("weir_reservation_ends_total", "domain rule limit token",
				"Ends of requests. token: found, none (the start was not charged, so the end charges the whole cost).",
				func(c *limitCounters, w metric.Writer) {
					metric.Put(w, c.reservation.found.Load(), c.Domain, c.Rule, c.Limit, "found")
					metric.Put(w, c.reservation.without.Load(), c.Domain, c.Rule, c.Limit, "none")
				}),
			metric.Counters("weir_reservation_ends_lost_total", "domain rule limit",
				"Ends that were lost because Redis failed, so that the charge of the start stays. An end that Envoy cancels "+
					"before Weir has read it counts in weir_requests_abandoned_total instead.",
				func(c *limitCounters, w metric.Writer) {
					metric.Put(w, c.reservation.lost.Load(), c.Domain, c.Rule, c.Limit)
				}),
		),
		metric.Each(m.counts.having(decidedByEnvoys),
			metric.Counters("weir_quota_decisions_total", "domain rule limit outcome by",
				"Requests that Envoys decided by quotas, from their reports, by outcome. Not in weir_decisions_total. by: envoy.",
				byOutcome(decidedByEnvoys, decidedByEnvoys, byEnvoy)),
		),
		metric.Each(m.counts.allDomains,
			metric.Counters("weir_requests_total", "domain code",
				"Decided requests, by domain and code: ok, over_limit. Domains without rules, or beyond --metrics-max-rules, "+
					"are (other).",
				func(c *domainCounters, w metric.Writer) {
					metric.Put(w, c.ok.Load(), c.domain, "ok")
					metric.Put(w, c.overLimit.Load(), c.domain, "over_limit")
				}),
		),
		metric.Of(m.counts.live.Load,
			metric.Gauge("weir_rules_domains", "Domains of the rules in force.",
				func(live *setCounters) int { return len(live.domains) }),
			metric.Gauge("weir_rules_limits", "Limits of the rules in force.",
				func(live *setCounters) int { return len(live.limits) }),
			metric.Gauge("weir_rules_without_series",
				"Rules in force beyond --metrics-max-rules, which count together as (other).",
				func(live *setCounters) int { return live.others }),
		),
	}
}

// failureMetrics returns the metrics of requests that were not decided, or not by the store.
func (m *Metrics) failureMetrics() []metric.Group {
	return []metric.Group{
		metric.Of(m.self,
			metric.Counters("weir_requests_rejected_total", "code",
				"Requests answered with a gRPC error, by code, including too large (ResourceExhausted) and undecodable "+
					"(Internal) requests. Not in weir_requests_total.",
				func(m *Metrics, w metric.Writer) {
					for code := range m.rejected {
						putIfAny(w, m.rejected[code].Load(), codes.Code(code).String())
					}
				}),
			metric.Counter("weir_panics_total",
				"Panics of requests (answered with Internal), of HTTP requests and, inside Envoy, of background work, which "+
					"did not end the process. Report them with the stack in the log.",
				func(m *Metrics) uint64 { return m.panics.Load() }),
			metric.Counter("weir_requests_abandoned_total",
				"Requests whose caller timed out. Envoy then lets them pass unless failure_mode_deny is set. Alert on it.",
				func(m *Metrics) uint64 { return m.abandoned.Load() }),
			metric.Counters("weir_store_errors_total", "reason",
				"Requests decided without Redis: by on_store_failure or, if late, by this process's own count. reason: "+
					"timeout (no response or connection in time), unreachable (such as a refused connection), error (an error "+
					"from Redis), breaker_open (no call, because Redis did not respond), late (this process had too little "+
					"CPU to send requests or read responses in time).",
				func(m *Metrics, w metric.Writer) {
					metric.Put(w, m.storeErrors.timeout.Load(), "timeout")
					metric.Put(w, m.storeErrors.unreachable.Load(), "unreachable")
					metric.Put(w, m.storeErrors.answered.Load(), "error")
					metric.Put(w, m.storeErrors.breakerOpen.Load(), "breaker_open")
					metric.Put(w, m.storeErrors.late.Load(), "late")
				}),
		),
	}
}

// Delayed returns the metrics of delayed requests.
func Delayed(read func() decide.DelayedStats) metric.Group {
	return metric.Of(read,
		metric.Gauge("weir_delayed_requests",
			"Requests that leaky_queue or max_wait may delay now, at most --max-delayed.",
			func(s decide.DelayedStats) int64 { return s.Now }),
		metric.Counter("weir_delayed_refused_total",
			"Requests denied without a charge, because --max-delayed requests were delayed already.",
			func(s decide.DelayedStats) uint64 { return s.Refused }),
	)
}

// processMetrics returns the metrics of files and the build.
func (m *Metrics) processMetrics() []metric.Group {
	return []metric.Group{
		metric.Of(fileread.Default.Hung,
			metric.Gauge("weir_file_reads_hung",
				"File reads (rules, values, certificates, passwords) that have hung for more than 10 s. Alert on it.",
				metric.Itself[int]),
		),
		metric.Of(m.self,
			metric.Gauges("weir_build_info", "version commit go_version", "Always 1. The labels say which build runs.",
				func(m *Metrics, w metric.Writer) { metric.Put(w, 1, m.o.Build.Version, m.o.Build.Commit, m.o.Build.Go) }),
		),
	}
}

// putIfAny writes a series if its value is not 0.
func putIfAny(w metric.Writer, n uint64, labels ...string) {
	if n > 0 {
		metric.Put(w, n, labels...)
	}
}

func decidedHere(c *limitCounters) *outcomeCounts     { return &c.decisions }
func decidedByEnvoys(c *limitCounters) *outcomeCounts { return &c.byEnvoys }

// byOutcome writes a series per outcome, with additional labels. The series of allowed and denied begin with the first
// request, so that rates start from 0; other outcomes begin with their first decision.
func byOutcome(
	decisions, counts func(*limitCounters) *outcomeCounts, more ...string,
) func(*limitCounters, metric.Writer) {
	return func(c *limitCounters, w metric.Writer) {
		had := decisions(c)
		for i := range had {
			if o := decide.Outcome(i); o == decide.Allowed || o == decide.Denied || had[i].Load() > 0 {
				metric.Put(w, counts(c)[i].Load(), append([]string{c.Domain, c.Rule, c.Limit, o.String()}, more...)...)
			}
		}
	}
}
