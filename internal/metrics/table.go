package metrics

import (
	"cmp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/conns"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/internal/rlqs"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// This file and classic.go are the table of all metrics; docs/reference/metrics.md is written from them. Each line has
// a metric's name, its labels, its help, and where the number comes from.

// byEnvoy is a label that weir_decisions_total does not have, so that the two can be added up.
const byEnvoy = "envoy"

var requestSecondsRow = Description{
	"weir_request_seconds", "histogram", "Time from a decoded request to its response, errors included.", nil,
}

var takeSecondsRow = Description{
	"weir_store_take_seconds", "histogram",
	"Time that a request waited for Redis, errors included. No request waits for the renewal of a lease, so renewals do " +
		"not count. A request that asks several stores counts under the store (several). Redis only.",
	[]string{"store"},
}

// described is a group of the table, or a histogram in it.
type described interface {
	prometheus.Collector
	describe() []Description
}

// table returns every metric but those of classicMetrics. The functions below are lists, a few lines for each metric.
func (m *Metrics) table() []described {
	return slices.Concat(m.requestMetrics(), m.quotaMetrics(), m.ruleMetrics(), m.storeMetrics(), m.guardMetrics(),
		m.processMetrics())
}

// requestMetrics are of what was decided.
func (m *Metrics) requestMetrics() []described {
	return []described{
		measured{m.requestSeconds, requestSecondsRow},
		measured{m.takeSeconds, takeSecondsRow},
		newGroup(m.counts.having(decidedHere),
			counters("weir_decisions_total", "domain rule limit outcome",
				"Decisions of a limit, by outcome. A limit appears with its first request.",
				byOutcome(decidedHere, decidedHere)),
			counters("weir_hits_total", "domain rule limit outcome",
				"Hits that requests asked of a limit, by outcome: the sum of the requests' costs.",
				byOutcome(decidedHere, func(c *limitCounters) *outcomeCounts { return &c.hits })),
			counters("weir_hits_near_limit_total", "domain rule limit",
				"Allowed hits above --near-limit-ratio of the limit, or of its burst if it has one.",
				func(c *limitCounters, w writer) { put(w, c.near.Load(), c.Domain, c.Rule, c.Limit) }),
			counters("weir_hits_known_denied_total", "domain rule limit",
				"Denied hits that a cached denial answered, without Redis.",
				func(c *limitCounters, w writer) { putIfAny(w, c.known.Load(), c.Domain, c.Rule, c.Limit) }),
			counters("weir_hits_returned_total", "domain rule limit",
				"Hits that requests with negative costs returned.",
				func(c *limitCounters, w writer) { putIfAny(w, c.returned.Load(), c.Domain, c.Rule, c.Limit) }),
		),
		newGroup(m.counts.having(decidedByEnvoys),
			counters("weir_quota_decisions_total", "domain rule limit outcome by",
				"Requests that Envoys decided by their quotas of a limit, as they reported them, by outcome. "+
					"weir_decisions_total does not count them. by: envoy.",
				byOutcome(decidedByEnvoys, decidedByEnvoys, byEnvoy)),
		),
		newGroup(m.counts.allDomains,
			counters("weir_requests_total", "domain code",
				"Requests that Weir decided, by domain and by the code that Envoy received: ok, over_limit. "+
					"Domains without rules, and domains beyond --metrics-max-rules, count as (other).",
				func(c *domainCounters, w writer) {
					put(w, c.ok.Load(), c.domain, "ok")
					put(w, c.overLimit.Load(), c.domain, "over_limit")
				}),
		),
		newGroup(only(m),
			counters("weir_requests_rejected_total", "code",
				"Requests answered with a gRPC error, by its code. Requests that are too large (ResourceExhausted) or cannot be "+
					"decoded (Internal) are included. weir_requests_total does not count them.",
				func(m *Metrics, w writer) {
					for code := range m.rejected {
						putIfAny(w, m.rejected[code].Load(), codes.Code(code).String())
					}
				}),
			counter("weir_panics_total", "Panics that did not end the process: of requests, which are answered Internal, of "+
				"HTTP requests, and, inside Envoy, of what runs in the background. Report them with the stack in the log.",
				func(m *Metrics) uint64 { return m.panics.Load() }),
			counter("weir_requests_abandoned_total",
				"Requests whose caller stopped waiting, since its timeout was over: Envoy's, which lets them pass unless "+
					"failure_mode_deny is set. Alert on it.",
				func(m *Metrics) uint64 { return m.abandoned.Load() }),
			counters("weir_store_errors_total", "reason",
				"Requests that Redis did not decide. Each rule's on_store_failure decided them; those of reason late were counted "+
					"in this process. reason: timeout (no answer, or no connection, in time), unreachable (such as a refused "+
					"connection), error (Redis answered with an error), not_asked (the breaker is open), late (this process had "+
					"too little CPU, or too many requests, to send them or to read the answers in time).",
				func(m *Metrics, w writer) {
					put(w, m.storeErrors.timeout.Load(), "timeout")
					put(w, m.storeErrors.unreachable.Load(), "unreachable")
					put(w, m.storeErrors.answered.Load(), "error")
					put(w, m.storeErrors.breakerOpen.Load(), "not_asked")
					put(w, m.storeErrors.late.Load(), "late")
				}),
		),
		newGroup(m.Delayed.now,
			gauge("weir_held_answers", "Requests whose responses leaky_queue or max_wait may hold now. --max-held bounds them.",
				func(s decide.DelayedStats) int64 { return s.Now }),
			counter("weir_held_refused_total", "Requests denied without a charge, since Weir already held --max-held responses.",
				func(s decide.DelayedStats) uint64 { return s.Refused }),
		),
	}
}

// quotaMetrics are of what is assigned to Envoys.
func (m *Metrics) quotaMetrics() []described {
	return []described{
		newGroup(m.Quotas.now,
			gauges("weir_quota_streams", "state",
				"Streams of Envoys that get quotas (--quota). state: open, or broken while what was assigned may be in force.",
				func(s rlqs.Stats, w writer) {
					put(w, s.Streams, "open")
					put(w, s.Broken, "broken")
				}),
			gauges("weir_quota_buckets", "state",
				"Buckets of these streams. state: assigned.",
				func(s rlqs.Stats, w writer) { put(w, s.Buckets, "assigned") }),
			counters("weir_quota_assignments_total", "kind",
				"Assignments sent to Envoys. kind: allow_all, deny_all, token_bucket, abandon (the bucket is no longer used).",
				func(s rlqs.Stats, w writer) {
					for i, kind := range []string{"allow_all", "deny_all", "token_bucket", "abandon"} {
						put(w, s.Sent[i], kind)
					}
				}),
			counter("weir_quota_charged_hits_total", "Hits charged to counters ahead of the requests that Envoys admit.",
				func(s rlqs.Stats) uint64 { return s.Charged }),
			counter("weir_quota_returned_hits_total", "Hits charged ahead that were not used, and returned to their windows.",
				func(s rlqs.Stats) uint64 { return s.Returned }),
			counter("weir_quota_over_requests_total",
				"Requests that Envoys admitted before they were charged: until the first assignment, or after a lost one.",
				func(s rlqs.Stats) uint64 { return s.Over }),
			counter("weir_quota_shortages_total", "Assignments lowered at once, since their counter had not enough left.",
				func(s rlqs.Stats) uint64 { return s.Shortages }),
			counter("weir_quota_store_failures_total", "Charges for quotas that the store did not decide.",
				func(s rlqs.Stats) uint64 { return s.Failures }),
			counter("weir_quota_reports_total", "Reports of Envoys about what their buckets admitted.",
				func(s rlqs.Stats) uint64 { return s.Reports }),
			counters("weir_quota_reported_requests_total", "outcome",
				"Requests that Envoys decided by themselves, as they reported them. outcome: allowed, denied.",
				func(s rlqs.Stats, w writer) {
					put(w, s.Allowed, "allowed")
					put(w, s.Denied, "denied")
				}),
			counters("weir_quota_refused_total", "reason",
				"What got no quota. reason: limit (a bucket whose limit or entries cannot be assigned: see the log), "+
					"buckets (beyond 1,000 of an Envoy, or the host has as many as are free of 100,000), "+
					"streams (the host has as many as are free of 2,000), message (a stream ended for a wrong message).",
				func(s rlqs.Stats, w writer) {
					put(w, s.Refused, "limit")
					put(w, s.Dropped, "buckets")
					put(w, s.TooMany, "streams")
					put(w, s.InvalidEnded, "message")
				}),
			gauge("weir_quota_oldest_report_seconds",
				"The longest time since a bucket of an open stream was reported. Envoy reports every 5 s.",
				func(s rlqs.Stats) float64 { return s.OldestReport.Seconds() }),
		),
	}
}

// ruleMetrics are of the rules in force and where they come from.
func (m *Metrics) ruleMetrics() []described {
	return []described{
		newGroup(only(m),
			gauge("weir_rules_domains", "Domains of the live rules.",
				func(m *Metrics) int { return len(m.counts.live.Load().domains) }),
			gauge("weir_rules_limits", "Limits of the live rules.",
				func(m *Metrics) int { return len(m.counts.live.Load().limits) }),
			gauge("weir_rules_without_series",
				"Live rules beyond --metrics-max-rules. They count together, as domain, rule and limit (other).",
				func(m *Metrics) int { return m.counts.live.Load().others }),
			gauges("weir_rules_info", "hash", "1. The label is the content hash of the live rules.",
				func(m *Metrics, w writer) {
					if hash := m.loads.hash.Load(); hash != nil {
						put(w, 1, *hash)
					}
				}),
			gauge("weir_rules_last_load_timestamp_seconds", "When the live rules went live. 0: there are none.",
				func(m *Metrics) float64 { return time.Duration(m.loads.at.Load()).Seconds() }),
			counters("weir_rules_loads_total", "result", "Loads of changed rule files. result: ok, refused.",
				func(m *Metrics, w writer) {
					put(w, m.loads.ok.Load(), "ok")
					put(w, m.loads.refused.Load(), "refused")
				}),
			gauge("weir_rules_refused", "1 while the rule files are refused and older rules are live, else 0. Alert on it.",
				func(m *Metrics) int { return oneIf(m.loads.isRefused.Load()) }),
		),
		newGroup(m.Published.now,
			gauge("weir_rules_published_version", "Version of the published rules that are live. 0: there are none.",
				func(s *adminapi.PublishedStatus) uint64 { return s.Version }),
			gauge("weir_rules_published_newest_version",
				"Version of the published rules that Weir read last. If it is not the live version, it was refused.",
				func(s *adminapi.PublishedStatus) uint64 { return s.Newest }),
			gauge("weir_rules_published_reachable", "1 if Redis answered the last query for published rules, else 0.",
				func(s *adminapi.PublishedStatus) int { return oneIf(s.Error == "") }),
		),
		newGroup(m.XDS.now,
			gauge("weir_rules_xds_connected", "1 while a stream to the xDS server is open, else 0: the last rules stay.",
				func(s *adminapi.XDSStatus) int { return oneIf(s.Connected) }),
			gauge("weir_rules_xds_domains", "Domains whose rules came by xDS.",
				func(s *adminapi.XDSStatus) int { return s.Domains }),
			gauge("weir_rules_xds_refused_domains",
				"Domains of the newest answer that cannot be used, so that their last good rules stay. Alert on it.",
				func(s *adminapi.XDSStatus) int { return s.RefusedDomains }),
			gauge("weir_rules_xds_findings", "What is wrong with these domains: number of findings, which GET /rules shows.",
				func(s *adminapi.XDSStatus) int { return s.FindingCount }),
			counter("weir_rules_xds_connections_total", "Streams to the xDS server that were opened.",
				func(s *adminapi.XDSStatus) uint64 { return s.Connections }),
			counters("weir_rules_xds_answers_total", "result",
				"Answers of the xDS server. result: ok, also if some of the domains are not used; refused.",
				func(s *adminapi.XDSStatus, w writer) {
					put(w, s.Accepted, "ok")
					put(w, s.Refused, "refused")
				}),
		),
	}
}

// storeMetrics are of the counters, in memory and in Redis.
func (m *Metrics) storeMetrics() []described {
	return []described{
		newGroup(m.Memory.now,
			gauge("weir_memory_keys", "Counters in memory. Expired counters that are not freed yet are included.",
				func(s MemoryStats) int { return s.Keys }),
			gauge("weir_memory_max_keys", "Most counters that memory holds.",
				func(s MemoryStats) int { return s.MaxKeys }),
			gauge("weir_memory_bytes", "Approximate size of the counters in memory.",
				func(s MemoryStats) int64 { return s.Bytes }),
			counter("weir_memory_keys_expired_total", "Counters freed, since their limits were fully available again.",
				func(s MemoryStats) uint64 { return s.Expired }),
			counter("weir_memory_keys_evicted_total",
				"Counters dropped before they expired, since memory was full. Their limits may have been exceeded.",
				func(s MemoryStats) uint64 { return s.Evicted }),
			counter("weir_memory_limiting_evicted_total",
				"Counters dropped that denied, or had nothing left, since seven eighths of all do. They count as evicted, too.",
				func(s MemoryStats) uint64 { return s.LimitingEvicted }),
			counter("weir_memory_cut_counters_total",
				"Counters that were further ahead than their limit can put them, and count as full: a rule was edited, or "+
					"the clock was set back.",
				func(s MemoryStats) uint64 { return s.Cut }),
			counter("weir_memory_clock_steps_total",
				"How often windows that follow the clock moved, since the wall clock was set: by a time server, or when a machine "+
					"resumes.",
				func(s MemoryStats) uint64 { return s.ClockSteps }),
		),
		newGroup(each(&m.Stores),
			histograms("weir_store_batch_requests", "store",
				"Requests that share a script call. The count is the script calls, the sum the requests. Redis only.",
				func(s StoreStats, w writer) {
					var calls uint64
					upTo := make(map[float64]uint64, len(redisstore.BatchSizes))
					for i, n := range s.Batches {
						if calls += n; i < len(redisstore.BatchSizes) {
							upTo[float64(redisstore.BatchSizes[i])] = calls
						}
					}
					w.histogram(calls, float64(s.Requests), upTo, storeLabel(s.Name))
				}),
			counters("weir_store_script_loads_total", "store",
				"Script calls repeated with the script's text, since Redis did not have the script. Redis only.",
				func(s StoreStats, w writer) { put(w, s.Texts, storeLabel(s.Name)) }),
			counters("weir_store_restarted_counters_total", "store",
				"Counters that Weir started again, since their value in Redis cannot be Weir's: it cannot be read. Redis only.",
				func(s StoreStats, w writer) { put(w, s.Restarted, storeLabel(s.Name)) }),
			counters("weir_store_cut_counters_total", "store",
				"Counters that were further ahead than their limit can put them, and count as full: a rule was edited, or Redis's "+
					"clock was set back. Redis only.",
				func(s StoreStats, w writer) { put(w, s.Cut, storeLabel(s.Name)) }),
			gauges("weir_store_pool_connections", "store state", "Open connections. state: idle, used. Redis only.",
				func(s StoreStats, w writer) {
					put(w, s.Idle, storeLabel(s.Name), "idle")
					put(w, s.Connections-s.Idle, storeLabel(s.Name), "used")
				}),
			counters("weir_store_pool_gets_total", "store result",
				"Connections that script calls asked of the pool. result: found (an idle one), made, timeout. Redis only.",
				func(s StoreStats, w writer) {
					put(w, s.Found, storeLabel(s.Name), "found")
					put(w, s.Made, storeLabel(s.Name), "made")
					put(w, s.Timeouts, storeLabel(s.Name), "timeout")
				}),
			counters("weir_store_pool_waits_total", "store",
				"Script calls that waited for a connection, since all were in use. Redis only.",
				func(s StoreStats, w writer) { put(w, s.Waits, storeLabel(s.Name)) }),
			counters("weir_store_pool_stale_total", "store",
				"Connections closed, since they were idle, old or broken. Redis only.",
				func(s StoreStats, w writer) { put(w, s.Stale, storeLabel(s.Name)) }),
		),
	}
}

// guardMetrics are of what stands before Redis: failure policy, breaker, cached denials and leases.
func (m *Metrics) guardMetrics() []described {
	return []described{
		newGroup(m.Policy.now,
			gauges("weir_store_policy_seconds", "store",
				"How long on_store_failure has decided requests in place of this Redis. 0: Redis decides. Alert above 60. "+
					"Redis only.",
				func(stores map[string]time.Duration, w writer) {
					for name, lasted := range stores {
						put(w, lasted.Seconds(), storeLabel(name))
					}
				}),
		),
		newGroup(m.Breaker.now,
			gauge("weir_store_breaker_open",
				"Redis servers, and masters of a Cluster, that Weir has stopped querying, since they did not answer. Redis only.",
				func(servers int) int { return servers }),
		),
		newGroup(m.Denials.now,
			counter("weir_known_denials_total", "Requests that a cached denial answered, without Redis. Redis only.",
				func(answered uint64) uint64 { return answered }),
		),
		newGroup(m.Leases.now,
			gauge("weir_lease_keys", "Counters that this process holds a lease of.",
				func(s guard.LeaseStats) int { return s.Keys }),
			gauge("weir_lease_permits", "Permits on lease: charged in Redis, neither spent nor released.",
				func(s guard.LeaseStats) int64 { return s.Permits }),
			counter("weir_lease_answers_total", "Requests that leases decided, without Redis.",
				func(s guard.LeaseStats) uint64 { return s.Answers }),
			counter("weir_lease_permits_taken_total", "Permits that leases acquired.",
				func(s guard.LeaseStats) uint64 { return s.Taken }),
			counter("weir_lease_permits_returned_total", "Permits that leases released unspent.",
				func(s guard.LeaseStats) uint64 { return s.Returned }),
			counter("weir_lease_permits_lost_total",
				"Permits neither spent nor released, since Redis did not answer or their window was about to end.",
				func(s guard.LeaseStats) uint64 { return s.Lost }),
		),
	}
}

// processMetrics are of clients, files, logs and the build.
func (m *Metrics) processMetrics() []described {
	return []described{
		newGroup(each(&m.Clients),
			gauges("weir_connections", "listener", "Open connections. listener: grpc, http.",
				func(s ClientStats, w writer) { put(w, s.Open, s.Listener) }),
			gauges("weir_connections_max", "listener", "Most connections at once. listener: grpc, http.",
				func(s ClientStats, w writer) { put(w, s.Max, s.Listener) }),
			counters("weir_clients_refused_total", "listener reason",
				"Connections closed because of a bound. listener: grpc, http; reason: full (a new connection, "+
					"while all others were busy), idle (an idle one, for a new one), slow (a request takes too long to arrive), "+
					"memory (weir_client_memory_bytes), resets (too many requests reset), unread (the client did not read).",
				func(s ClientStats, w writer) {
					for i, n := range s.Refused {
						if why := conns.Reason(i); s.Listener == "grpc" || why == conns.Full || why == conns.Idle {
							put(w, n, s.Listener, why.String())
						}
					}
				}),
		),
		newGroup(m.ClientMemory.now,
			gauge("weir_client_memory_bytes",
				"Memory of requests that have not arrived completely, and of answers that clients do not read. "+
					"It is bounded: see docs/operate/security.md.",
				func(bytes int64) int64 { return bytes }),
		),
		newGroup(m.Handshakes.now,
			counters("weir_tls_handshakes_failed_total", "listener",
				"TLS handshakes that failed. listener: grpc, http. The log has at most one line about them in 10 s.",
				func(failed map[string]uint64, w writer) {
					for listener, n := range failed {
						put(w, n, listener)
					}
				}),
		),
		newGroup(m.HungReads.now,
			gauge("weir_file_reads_hung",
				"Reads of files (rules, values, certificates, passwords) that have not returned for more than 10 s, since a file "+
					"system hangs. Alert on it.",
				func(reads int) int { return reads }),
		),
		newGroup(m.Log.now,
			counters("weir_log_dropped_total", "reason",
				"Dropped lines of the process's own log. reason: buffer (standard error is read too slowly, or not at all), "+
					"write_error (nobody reads it, or the disk is full).",
				func(s logging.QueueStats, w writer) {
					put(w, s.FullBuffer, "buffer")
					put(w, s.NotWritten, "write_error")
				}),
		),
		newGroup(only(m),
			gauges("weir_build_info", "version commit go_version", "1. The labels say what was built.",
				func(m *Metrics, w writer) { put(w, 1, m.o.Version, m.o.Commit, m.o.Go) }),
			counters("weir_http_wrong_tokens_total", "",
				"HTTP requests with another token than that of --http-token-file. The log names clients, a line a second.",
				func(m *Metrics, w writer) { put(w, m.WrongTokens.Load()) }),
		),
	}
}

// putIfAny writes a series that appears with its first value.
func putIfAny(w writer, n uint64, labels ...string) {
	if n > 0 {
		put(w, n, labels...)
	}
}

func decidedHere(c *limitCounters) *outcomeCounts     { return &c.decisions }
func decidedByEnvoys(c *limitCounters) *outcomeCounts { return &c.byEnvoys }

// byOutcome writes a series for each outcome, with more labels behind it. Allowed and denied appear with the first
// request, so that rates start from 0; the other outcomes appear once the decisions have had them.
func byOutcome(decisions, counts func(*limitCounters) *outcomeCounts, more ...string) func(*limitCounters, writer) {
	return func(c *limitCounters, w writer) {
		had := decisions(c)
		for i := range had {
			if o := decide.Outcome(i); o == decide.Allowed || o == decide.Denied || had[i].Load() > 0 {
				put(w, counts(c)[i].Load(), append([]string{c.Domain, c.Rule, c.Limit, o.String()}, more...)...)
			}
		}
	}
}

// storeLabel returns the label of a store. No named store has parentheses in its name.
func storeLabel(name string) string { return cmp.Or(name, "(default)") }

func oneIf(is bool) int {
	if is {
		return 1
	}
	return 0
}
