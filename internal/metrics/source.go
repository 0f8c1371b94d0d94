package metrics

import (
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/conns"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/decisionlog"
	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// Source is a part of the process whose numbers are read at each scrape. Its metrics are missing until From is called.
type Source[S any] struct{ read atomic.Pointer[func() S] }

// From names the function that returns the numbers. The function must be safe for concurrent use.
func (s *Source[S]) From(read func() S) { s.read.Store(&read) }

func (s *Source[S]) now(yield func(S) bool) {
	if read := s.read.Load(); read != nil {
		yield((*read)())
	}
}

// each yields the elements of a source that is a list.
func each[S any](s *Source[[]S]) iter.Seq[S] {
	return func(yield func(S) bool) {
		for list := range s.now {
			slices.Values(list)(yield)
		}
	}
}

// only yields s.
func only[S any](s S) iter.Seq[S] { return func(yield func(S) bool) { yield(s) } }

// Sources are the parts of the process that the table reads.
type Sources struct {
	Boosts      Source[BoostStats]
	Clients     Source[[]ClientStats]
	DecisionLog Source[decisionlog.Stats]
	Handshakes  Source[map[string]uint64] // TLS handshakes that failed, by listener
	Delayed     Source[decide.DelayedStats]
	HungReads   Source[int] // reads of files that have not returned
	Log         Source[logging.QueueStats]
	Published   Source[*adminapi.PublishedStatus]
	XDS         Source[*adminapi.XDSStatus]

	Breaker Source[int]    // Redis servers that Weir has stopped querying
	Denials Source[uint64] // requests that cached denials answered
	Leases  Source[guard.LeaseStats]
	Memory  Source[MemoryStats]
	Policy  Source[map[string]time.Duration] // how long the failure policy has decided, by the store's name
	Stores  Source[[]StoreStats]
}

// BoostStats is what is known of boosts.
type BoostStats struct {
	InForce   int
	Reachable bool // Redis answered the last query for boosts
}

// ClientStats is what one listener has seen of its clients.
type ClientStats struct {
	Listener string // grpc or http
	conns.Stats
}

// MemoryStats is the state of the memory store.
type MemoryStats struct {
	memstore.Stats
	MaxKeys int
}

// StoreStats is what one Redis store has done.
type StoreStats struct {
	Name string // of the named store; empty for --store
	redisstore.Stats
}
