package redisstore

import (
	"sync"

	"github.com/redis/go-redis/v9"
)

// Stats counts what a Store has done since it was made, and describes the connections of its client.
type Stats struct {
	// Calls are the script calls, and Requests the requests that they carried.
	Calls, Requests uint64
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

// Stats returns the counts up to now.
func (s *Store) Stats() (all Stats) {
	s.sent.count(func(s *Stats) { all = *s })
	all.Pool = *s.client.PoolStats()
	return all
}
