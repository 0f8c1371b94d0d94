package rlqs

import (
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/metrics/metric"
)

// Stats are the state and the counts of a Keeper since New.
type Stats struct {
	adminapi.QuotaStatus

	Sent [Abandon + 1]uint64 // assignments by Strategy

	Charged   uint64 // hits charged in advance
	Refunded  uint64 // charged hits that were not used, and were refunded to their windows
	Shortages uint64 // assignments lowered because a counter had too few hits left
	Failures  uint64 // charges that the store did not decide
	Dropped   uint64 // usages of buckets that exceed a maximum
	Refused   uint64 // usages of buckets whose limits or entries cannot be assigned

	Reports         uint64 // messages of Envoys
	Allowed, Denied uint64 // requests that Envoys reported as admitted and as denied
	InvalidEnded    uint64 // streams ended because of an invalid message

	OldestReport time.Duration // longest time since a report of an open stream's bucket
}

// Stats returns the current statistics.
func (k *Keeper) Stats() Stats {
	k.mu.Lock()
	defer k.mu.Unlock()
	now, st, debt := k.now(), k.stats, 0.0
	for s := range k.streams {
		if s.closed {
			st.Broken++
		} else {
			st.Streams++
		}
	}
	k.eachClient(func(c *client) {
		st.Buckets++
		if !c.isBroken() {
			st.OldestReport = max(st.OldestReport, now-c.reported)
		}
	})
	for _, b := range k.books {
		debt += b.debt
	}
	st.Debt = wholeHits(debt)
	return st
}

// Status returns the part of GET /status about quotas.
func (k *Keeper) Status() adminapi.QuotaStatus { return k.Stats().QuotaStatus }

// Metrics returns the metrics of quotas.
func (k *Keeper) Metrics() []metric.Group {
	return []metric.Group{
		metric.Of(k.Stats,
			metric.Gauges("weir_quota_streams", "state",
				"Streams of Envoys with quotas (--quota). state: open, broken (its assignments may be in force).",
				func(s Stats, w metric.Writer) {
					metric.Put(w, s.Streams, "open")
					metric.Put(w, s.Broken, "broken")
				}),
			metric.Gauges("weir_quota_buckets", "state",
				"Buckets of open streams. state: assigned.",
				func(s Stats, w metric.Writer) { metric.Put(w, s.Buckets, "assigned") }),
			metric.Counters("weir_quota_assignments_total", "kind",
				"Assignments sent to Envoys. kind: allow_all, deny_all, token_bucket, abandon (no longer used).",
				func(s Stats, w metric.Writer) {
					for i, kind := range []string{"allow_all", "deny_all", "token_bucket", "abandon"} {
						metric.Put(w, s.Sent[i], kind)
					}
				}),
			metric.Counter("weir_quota_charged_hits_total", "Hits charged in advance for requests that Envoys admit.",
				func(s Stats) uint64 { return s.Charged }),
			metric.Counter("weir_quota_refunded_hits_total",
				"Hits charged in advance, not used, and refunded.",
				func(s Stats) uint64 { return s.Refunded }),
			metric.Counter("weir_quota_over_requests_total",
				"Requests that Envoys admitted before Weir charged them: before the first assignment, or after a lost one.",
				func(s Stats) uint64 { return s.Uncharged }),
			metric.Counter("weir_quota_shortages_total", "Assignments lowered at once, because too little remained in "+
				"their counter.",
				func(s Stats) uint64 { return s.Shortages }),
			metric.Counter("weir_quota_store_failures_total", "Charges for quotas that the store did not decide.",
				func(s Stats) uint64 { return s.Failures }),
			metric.Counter("weir_quota_reports_total", "Reports from Envoys.",
				func(s Stats) uint64 { return s.Reports }),
			metric.Counters("weir_quota_reported_requests_total", "outcome",
				"Requests that Envoys decided by quotas, from their reports. outcome: allowed, denied.",
				func(s Stats, w metric.Writer) {
					metric.Put(w, s.Allowed, "allowed")
					metric.Put(w, s.Denied, "denied")
				}),
			metric.Counters("weir_quota_refused_total", "reason",
				"Refused quotas. reason: limit (the bucket's limit or entries cannot be assigned: see the log), buckets "+
					"(more than 1,000 of an Envoy, or too many of 100,000 for one host), message (a wrong message ended the "+
					"stream).",
				func(s Stats, w metric.Writer) {
					metric.Put(w, s.Refused, "limit")
					metric.Put(w, s.Dropped, "buckets")
					metric.Put(w, s.InvalidEnded, "message")
				}),
			metric.Gauge("weir_quota_oldest_report_seconds",
				"Age of the oldest report of an open stream's bucket. Envoy reports every 5 s.",
				func(s Stats) float64 { return s.OldestReport.Seconds() }),
		),
	}
}
