package conns

import (
	"slices"

	"github.com/weir-ratelimit/weir/internal/metrics/metric"
)

// Metrics are of what the guards have seen of clients, and of their common budget.
func Metrics(b *Budget, guards ...*Guard) []metric.Group {
	return []metric.Group{
		metric.Each(slices.Values(guards),
			metric.Gauges("weir_connections", "listener", "Open connections. listener: grpc, http.",
				func(g *Guard, w metric.Writer) { metric.Put(w, g.Stats().Open, g.o.Name) }),
			metric.Gauges("weir_connections_max", "listener", "Most connections at once. listener: grpc, http.",
				func(g *Guard, w metric.Writer) { metric.Put(w, g.o.Max, g.o.Name) }),
			metric.Counters("weir_clients_refused_total", "listener reason",
				"Connections closed because of a bound. listener: grpc, http; reason: full (a new connection, "+
					"while all others were busy), idle (an idle one, for a new one), slow (a request takes too long to arrive), "+
					"memory (weir_client_memory_bytes), resets (too many requests reset), unread (the client did not read).",
				func(g *Guard, w metric.Writer) {
					for i, n := range g.Stats().Refused {
						if why := Reason(i); g.o.HTTP2 != nil || why == Full || why == Idle {
							metric.Put(w, n, g.o.Name, why.String())
						}
					}
				}),
		),
		metric.Of(b.Used,
			metric.Gauge("weir_client_memory_bytes",
				"Memory of requests that have not arrived completely, and of answers that clients do not read. "+
					"It is bounded: see docs/operate/security.md.",
				metric.Itself[int64]),
		),
	}
}
