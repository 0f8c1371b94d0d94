package redisstore

import (
	"sort"
	"sync/atomic"
)

// BatchSizes are the upper bounds of Stats.Batches.
var BatchSizes = [...]int{1, 2, 4, 8, 16, 32, 64, 128, maxBatch}

// Stats is what a Store has done since it was made, and its connections.
type Stats struct {
	// Batches are the script calls by the requests that each carried: Batches[i] of up to BatchSizes[i] requests, and more
	// than in the one before; the last of more than all. Requests is the sum.
	Batches  [len(BatchSizes) + 1]uint64
	Requests uint64
	// Texts are the script calls that had to be made again with the script's text, since Redis did not know it.
	Texts uint64
	// Restarted are the counters that were started again, since Weir cannot have left the state that they had: it cannot be
	// read, or it lies too far ahead.
	Restarted uint64
	// Connections are those that are open, Idle those of them that nobody uses, to all nodes of a cluster.
	Connections, Idle int
	// Found and Made are the calls that found an idle connection, and that found none; Waits those that had to wait for
	// one of the pool, and Timeouts those that waited in vain.
	Found, Made, Waits, Timeouts uint64
	// Stale are the connections that were closed since they were idle, old or broken.
	Stale uint64
}

// sent counts script calls. It is safe for concurrent use.
type sent struct {
	batches  [len(BatchSizes) + 1]atomic.Uint64
	requests atomic.Uint64
	texts    atomic.Uint64
	restarts restarts
}

func (s *sent) batch(requests int) {
	s.batches[sort.SearchInts(BatchSizes[:], requests)].Add(1)
	s.requests.Add(uint64(requests)) //nolint:gosec // a length
}

// Stats is about the store now.
func (s *Store) Stats() Stats {
	pool := s.client.PoolStats()
	all := Stats{
		Requests:    s.sent.requests.Load(),
		Texts:       s.sent.texts.Load(),
		Restarted:   s.sent.restarts.all.Load(),
		Connections: int(pool.TotalConns), Idle: int(pool.IdleConns),
		Found: uint64(pool.Hits), Made: uint64(pool.Misses), Waits: uint64(pool.WaitCount), Timeouts: uint64(pool.Timeouts),
		Stale: uint64(pool.StaleConns),
	}
	for i := range s.sent.batches {
		all.Batches[i] = s.sent.batches[i].Load()
	}
	return all
}

// Each calls f for the store, which has no name.
func (s *Store) Each(f func(name string, s *Store)) { f("", s) }

// Each calls f for every store, by name; the first has none.
func (g *Group) Each(f func(name string, s *Store)) {
	f("", g.first)
	for name, s := range g.named {
		f(name, s)
	}
}
