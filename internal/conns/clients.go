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
	// UnreadFor is the time for which a client may leave sent bytes unread.
	UnreadFor = 30 * time.Second
	// KeepaliveTimeout is the time for which a client may leave sent bytes unacknowledged or a ping without a response.
	KeepaliveTimeout = 10 * time.Second
	// ConnMemory is the memory of an idle gRPC connection, in bytes. All idle connections together may occupy 1/memoryPart
	// of the memory limit.
	ConnMemory, memoryPart = 48 << 10, 4
	// mostGRPC and mostHTTP are the maximum numbers of connections if the Bounds are 0.
	mostGRPC, mostHTTP = 16384, 256
	// ownFiles is the minimum number of file descriptors that Weir reserves for rule files, Redis and collectors.
	ownFiles = 24
	// The Budget is at most 1/budgetPart of the memory limit.
	budgetPart = 8
)

// Bounds are the limits on a process's clients. Only tests set them: for a field that is 0, Weir uses the default in
// docs/operate/security.md.
type Bounds struct {
	GRPC, HTTP     int           // maximum numbers of connections
	ReceiveTimeout time.Duration // time for a request to arrive completely
	Budget         int64         // maximum memory that clients occupy, in bytes
	Resets         int           // maximum number of requests that a connection may reset per second
}

// Clients are the guards of a process's listeners. The guards share one budget.
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
				// When a stopped process continues, it reads at once all the resets that Envoys have sent since the stop.
				MaxResets:    cmp.Or(b.Resets, 10_000),
				WriteTimeout: UnreadFor, UserTimeout: KeepaliveTimeout,
			},
		}),
		HTTP:   New(Options{Name: "http", Max: b.HTTP, Budget: budget, Log: log}),
		Budget: budget,
	}
}

// of sets the maximum number of connections of each listener: at most so many that the process can still open files,
// and, for a bound of 0, at most so many that idle connections occupy 1/memoryPart of the memory limit.
func (b Bounds) of(files uint64, memory int64) Bounds {
	all := int(min(files, math.MaxInt32))
	b.GRPC = cmp.Or(b.GRPC, int(min(mostGRPC, max(64, memory/memoryPart/ConnMemory))))
	b.HTTP = min(cmp.Or(b.HTTP, mostHTTP), max(4, all/8))
	b.GRPC = min(b.GRPC, max(4, all-b.HTTP-max(ownFiles, all/4)))
	return b
}

// maxFiles returns the maximum number of file descriptors of the process.
func maxFiles() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt32
	}
	return limit.Cur
}

// Metrics returns the metrics of the guards and of their common budget.
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
				"Memory of unanswered requests, and of responses that clients do not read. Bounded: docs/operate/security.md.",
				metric.Itself[int64]),
		),
	}
}
