package rules

import (
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/metrics/metric"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// Metrics returns the metrics of the active rules and their sources.
func (r *Rules) Metrics() []metric.Group {
	return []metric.Group{
		metric.Of(r.reloader.Status,
			metric.Gauges("weir_rules_info", "hash", "Always 1. The label is the content hash of the rules in force.",
				func(s reload.Status, w metric.Writer) {
					if s.Hash != "" {
						metric.Put(w, 1, s.Hash)
					}
				}),
			metric.Gauge("weir_rules_last_load_timestamp_seconds", "When the rules in force were loaded. 0: there are none.",
				func(s reload.Status) float64 {
					if s.LoadedAt.IsZero() {
						return 0
					}
					return time.Duration(s.LoadedAt.UnixNano()).Seconds()
				}),
			metric.Counters("weir_rules_loads_total", "result", "Loads of changed rule files. result: ok, refused.",
				func(s reload.Status, w metric.Writer) {
					metric.Put(w, s.Loads, "ok")
					metric.Put(w, s.Refused, "refused")
				}),
			metric.Gauge("weir_rules_refused",
				"1 while the rule files are refused and older rules are in force, else 0. Alert on it.",
				func(s reload.Status) int { return metric.OneIf(s.Err != nil) }),
		),
		metric.Of(r.reloader.Status,
			metric.Counter("ratelimit_service_config_load_success", "Loads of changed rules that came into force.",
				func(s reload.Status) uint64 { return s.Loads }),
			metric.Counter("ratelimit_service_config_load_error", "Loads of changed rules that were refused.",
				func(s reload.Status) uint64 { return s.Refused }),
		),
		metric.Each(metric.If(r.Published),
			metric.Gauge("weir_rules_published_version", "Version of the published rules that are in force. 0: none are.",
				func(s *adminapi.PublishedStatus) uint64 { return s.Version }),
			metric.Gauge("weir_rules_published_newest_version",
				"Version of published rules that Weir read last. If it is not in force, Weir refused it.",
				func(s *adminapi.PublishedStatus) uint64 { return s.Newest }),
			metric.Gauge("weir_rules_published_reachable", "1 if Redis responded to the last query for published rules, else 0.",
				func(s *adminapi.PublishedStatus) int { return metric.OneIf(s.Error == "") }),
		),
		metric.Each(metric.If(r.XDS),
			metric.Gauge("weir_rules_xds_connected", "1 while a stream to the xDS server is open, else 0; the last rules stay.",
				func(s *adminapi.XDSStatus) int { return metric.OneIf(s.Connected) }),
			metric.Gauge("weir_rules_xds_domains", "Domains whose rules came by xDS.",
				func(s *adminapi.XDSStatus) int { return s.Domains }),
			metric.Gauge("weir_rules_xds_refused_domains",
				"Domains of the newest response with errors, whose last valid rules stay. Alert on it.",
				func(s *adminapi.XDSStatus) int { return s.RefusedDomains }),
			metric.Gauge("weir_rules_xds_findings",
				"Findings about these domains; GET /rules shows them.",
				func(s *adminapi.XDSStatus) int { return s.FindingCount }),
			metric.Counter("weir_rules_xds_connections_total", "Streams opened to the xDS server.",
				func(s *adminapi.XDSStatus) uint64 { return s.Connections }),
			metric.Counters("weir_rules_xds_answers_total", "result",
				"Responses of the xDS server. result: ok (even if some domains are not used), refused.",
				func(s *adminapi.XDSStatus, w metric.Writer) {
					metric.Put(w, s.Accepted, "ok")
					metric.Put(w, s.Refused, "refused")
				}),
		),
	}
}
