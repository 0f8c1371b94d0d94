package app

import (
	"cmp"
	"math"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/weir-ratelimit/weir/internal/conns"
	"github.com/weir-ratelimit/weir/internal/grpcserver"
)

const (
	// mostGRPC and mostHTTP are the most connections where nobody says how many.
	mostGRPC, mostHTTP = 16384, 256
	// connMemory is what an idle gRPC connection takes, in bytes (TestMemoryOfAConnection), and memoryPart the part of the
	// memory limit that all of them may take together.
	connMemory, memoryPart = 48 << 10, 4
	// ownFiles is how many file descriptors the process keeps for itself at the least: rule files, Redis, collectors.
	ownFiles = 24
)

// clients guards the listeners.
type clients struct {
	grpc, http *conns.Guard
	memory     *conns.Budget
}

func newClients(o *Options) *clients {
	grpcMax, httpMax := o.connections(maxFiles(), debug.SetMemoryLimit(-1))
	memory := conns.NewBudget(int64(o.Bounds.Waiting))
	return &clients{
		grpc: conns.New(conns.Options{
			Name: "grpc", Max: grpcMax, Budget: memory, Log: o.Log,
			HTTP2: &conns.HTTP2{
				ReceiveTimeout: o.Bounds.ReceiveTimeout, MaxResets: o.Bounds.Resets,
				WriteTimeout: grpcserver.UnreadFor, UserTimeout: grpcserver.KeepaliveTimeout,
			},
		}),
		http:   conns.New(conns.Options{Name: "http", Max: httpMax, Budget: memory, Log: o.Log}),
		memory: memory,
	}
}

// connections returns the most connections of each listener: as Bounds says, but never so many that the process could
// not open a file, nor, where Bounds is 0, so many that idle ones would take more than a part of the memory limit.
func (o *Options) connections(files uint64, memory int64) (grpcMax, httpMax int) {
	all := int(min(files, math.MaxInt32))
	grpcMax, httpMax = o.Bounds.GRPCConnections, o.Bounds.HTTPConnections
	if grpcMax == 0 {
		grpcMax = int(min(mostGRPC, max(64, memory/memoryPart/connMemory)))
	}
	if httpMax == 0 {
		httpMax = mostHTTP
	}
	httpMax = min(httpMax, max(4, all/8))
	grpcMax = min(grpcMax, max(4, all-httpMax-max(ownFiles, all/4)))
	return grpcMax, httpMax
}

// maxFiles is how many file descriptors the process may have.
func maxFiles() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt32
	}
	return limit.Cur
}

// Bounds are what clients may take. No flag changes them, since Envoy reaches none: docs/operate/security.md lists
// them. A field that is 0 has its default; tests set others.
type Bounds struct {
	GRPCConnections, HTTPConnections int           // 0: see Options.connections
	IdleConnection                   time.Duration // a gRPC connection without requests is closed, gracefully
	ReceiveTimeout                   time.Duration // for a request to arrive completely
	Waiting                          int           // bytes that wait for clients: see conns.Budget
	Resets                           int           // of a client's requests in a second, on one connection
	Streams                          uint32        // requests at once on one connection
	Message                          int           // bytes of a request

	RulesPoll, RulesSettle time.Duration // of rule files: see package reload
}

// waitingPart is the part of the memory limit that Bounds.Waiting takes at most.
const waitingPart = 8

// fill sets the defaults, for Go's memory limit in bytes.
func (b *Bounds) fill(memory int64) {
	b.IdleConnection = cmp.Or(b.IdleConnection, 10*time.Minute)
	b.ReceiveTimeout = cmp.Or(b.ReceiveTimeout, 10*time.Second)
	b.Waiting = cmp.Or(b.Waiting, int(min(24<<20, max(1<<20, memory/waitingPart))))
	// A process that stood still reads at once what Envoy has given up meanwhile.
	b.Resets = cmp.Or(b.Resets, 10_000)
	b.Streams = cmp.Or(b.Streams, 1000)
	// Envoy sends its largest header, of 60 KiB unless set, once in each descriptor: room for 68 of them.
	b.Message = cmp.Or(b.Message, 4<<20)
}
