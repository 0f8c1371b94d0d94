package conns

import (
	"cmp"
	"log/slog"
	"math"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"github.com/weir-ratelimit/weir/internal/metrics/metric"
)

const (
	// UnreadFor is how long a client may leave unread what it was sent.
	UnreadFor = 30 * time.Second
	// KeepaliveTimeout is how long a client has to acknowledge what it was sent, and to answer a ping.
	KeepaliveTimeout = 10 * time.Second
	// ConnMemory is what an idle gRPC connection takes, in bytes, and memoryPart the part of the memory limit that all of
	// them may take together.
	ConnMemory, memoryPart = 48 << 10, 4
	// mostGRPC and mostHTTP are the most connections where Bounds are 0.
	mostGRPC, mostHTTP = 16384, 256
	// ownFiles is how many file descriptors the process keeps for itself at the least: rule files, Redis, collectors.
	ownFiles = 24
	// budgetPart is the part of the memory limit that the Budget takes at most.
	budgetPart = 8
)

// Bounds are what clients may take. No flag changes them, since Envoy reaches none: docs/operate/security.md lists
// them. A field that is 0 has its default; tests set others.
type Bounds struct {
	GRPC, HTTP     int           // connections: see of
	ReceiveTimeout time.Duration // for a request to arrive completely
	Budget         int64         // bytes that wait for clients
	Resets         int           // of a client's requests in a second, on one connection
}

// Clients are the guards of a process's listeners, with one budget.
type Clients struct {
	GRPC, HTTP *Guard
	Budget     *Budget
}

// NewClients makes the guards.
func NewClients(b Bounds, log *slog.Logger) *Clients {
	memory := debug.SetMemoryLimit(-1)
	b = b.of(maxFiles(), memory)
	budget := NewBudget(cmp.Or(b.Budget, min(24<<20, max(1<<20, memory/budgetPart))))
	return &Clients{
		GRPC: New(Options{
			Name: "grpc", Max: b.GRPC, Budget: budget, Log: log,
			HTTP2: &HTTP2{
				ReceiveTimeout: cmp.Or(b.ReceiveTimeout, 10*time.Second),
				// A process that stood still reads at once what Envoy has given up meanwhile.
				MaxResets:    cmp.Or(b.Resets, 10_000),
				WriteTimeout: UnreadFor, UserTimeout: KeepaliveTimeout,
			},
		}),
		HTTP:   New(Options{Name: "http", Max: b.HTTP, Budget: budget, Log: log}),
		Budget: budget,
	}
}

// of sets the most connections of each listener: never so many that the process could not open a file, nor, where a
// bound is 0, so many that idle ones would take more than a part of the memory limit.
func (b Bounds) of(files uint64, memory int64) Bounds {
	all := int(min(files, math.MaxInt32))
	b.GRPC = cmp.Or(b.GRPC, int(min(mostGRPC, max(64, memory/memoryPart/ConnMemory))))
	b.HTTP = min(cmp.Or(b.HTTP, mostHTTP), max(4, all/8))
	b.GRPC = min(b.GRPC, max(4, all-b.HTTP-max(ownFiles, all/4)))
	return b
}

// maxFiles is how many file descriptors the process may have.
func maxFiles() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt32
	}
	return limit.Cur
}

// Metrics are of what the guards have seen of clients, and of their common budget.
func (c *Clients) Metrics() []metric.Group {
	return []metric.Group{
		metric.Each(slices.Values([]*Guard{c.GRPC, c.HTTP}),
			metric.Gauges("weir_connections", "listener", "Open connections. listener: grpc, http.",
				func(g *Guard, w metric.Writer) { metric.Put(w, g.Stats().Open, g.o.Name) }),
			metric.Gauges("weir_connections_max", "listener", "Maximum number of open connections. listener: grpc, http.",
				func(g *Guard, w metric.Writer) { metric.Put(w, g.o.Max, g.o.Name) }),
			metric.Counters("weir_clients_refused_total", "listener reason",
				"Connections closed to protect Weir. listener: grpc, http; reason: full (all other connections are busy), "+
					"idle (to make room), slow (the request takes too long to arrive), memory (weir_client_memory_bytes), "+
					"resets (too many reset requests), unread (the client does not read).",
				func(g *Guard, w metric.Writer) {
					for i, n := range g.Stats().Refused {
						if why := Reason(i); g.o.HTTP2 != nil || why == Full || why == Idle {
							metric.Put(w, n, g.o.Name, why.String())
						}
					}
				}),
		),
		metric.Of(c.Budget.Used,
			metric.Gauge("weir_client_memory_bytes",
				"Memory of incomplete requests, and of responses that clients do not read. Bounded: docs/operate/security.md.",
				metric.Itself[int64]),
		),
	}
}
