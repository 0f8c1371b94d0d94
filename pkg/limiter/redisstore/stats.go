package redisstore

import (
	"sort"
	"sync"

	"github.com/redis/go-redis/v9"
)

// BatchSizes are the upper bounds of Stats.Batches.
var BatchSizes = [...]int{1, 2, 4, 8, 16, 32, 64, 128, maxBatch}

// Stats counts what a Store has done since it was made, and describes the connections of its client.
type Stats struct {
	// Batches are the script calls by the number of requests that each carried: Batches[i] counts calls of more than
	// BatchSizes[i-1] and up to BatchSizes[i] requests, the last one calls of more. Requests is the sum of all requests.
	Batches  [len(BatchSizes) + 1]uint64
	Requests uint64
	// Texts are the script calls that were sent a second time, with the script's text, because Redis did not know it.
	Texts uint64
	// Restarted are the counters that began again because Weir cannot have written the state that Redis had: it cannot be
	// read.
	Restarted uint64
	// Cut are the counters whose state was further ahead than their policy can put it, since a rule was edited or Redis's
	// clock was set back: see storekit.Counter.Cut.
	Cut uint64
	// Pool are the connections of the client, to all nodes of a cluster.
	Pool redis.PoolStats
}

// sent counts script calls. It is safe for concurrent use.
type sent struct {
	mu sync.Mutex
	Stats
}

func (s *sent) count(f func(s *Stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.Stats)
}

func (s *sent) batch(requests int) {
	s.count(func(s *Stats) {
		s.Batches[sort.SearchInts(BatchSizes[:], requests)]++
		s.Requests += uint64(requests) //nolint:gosec // a length
	})
}

// Stats returns the counts up to now.
func (s *Store) Stats() (all Stats) {
	s.sent.count(func(s *Stats) { all = *s })
	all.Pool = *s.client.PoolStats()
	return all
}
