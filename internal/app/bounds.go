package app

import (
	"cmp"
	"time"
)

// Bounds are what clients may take. No flag changes them, since Envoy reaches none: docs/operate/security.md lists
// them. A field that is 0 has its default; tests set others.
type Bounds struct {
	GRPCConnections, HTTPConnections int           // 0: see Options.connections
	IdleConnection                   time.Duration // a gRPC connection without requests is closed, gracefully
	ReceiveTimeout                   time.Duration // for a request to arrive completely
	Receiving                        int           // bytes of requests that are arriving and of answers that are not taken
	Resets                           int           // of a client's requests in a second, on one connection
	Streams                          uint32        // requests at once on one connection
	Message                          int           // bytes of a request

	RulesPoll, RulesSettle time.Duration // of rule files: see package reload
}

// receivingPart is the part of the memory limit that Bounds.Receiving takes at most.
const receivingPart = 8

// fill sets the defaults, for Go's memory limit in bytes.
func (b *Bounds) fill(memory int64) {
	b.IdleConnection = cmp.Or(b.IdleConnection, 10*time.Minute)
	b.ReceiveTimeout = cmp.Or(b.ReceiveTimeout, 10*time.Second)
	b.Receiving = cmp.Or(b.Receiving, int(min(64<<20, max(1<<20, memory/receivingPart))))
	// A process that stood still reads at once what Envoy has given up meanwhile.
	b.Resets = cmp.Or(b.Resets, 10_000)
	b.Streams = cmp.Or(b.Streams, 1000)
	// Envoy sends its largest header, of 60 KiB unless set, once in each descriptor: room for 68 of them.
	b.Message = cmp.Or(b.Message, 4<<20)
}
