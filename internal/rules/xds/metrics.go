package xds

import (
	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/metrics/metric"
)

// Metrics returns the metrics of the stream and of the rules that it delivered.
func (s *Source) Metrics() []metric.Group {
	return []metric.Group{
		metric.Of(s.Status,
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
