package redisstore

import (
	"sync"

	"github.com/redis/go-redis/v9"
)

// Stats holds counts since a Store was made, and statistics of its client's connections.
type Stats struct {
	// Calls is the number of script calls, and Requests the number of requests in all of these calls.
	Calls, Requests uint64
	// Texts is the number of script calls that were repeated with the script's text, because Redis did not know it.
	Texts uint64
	// Restarted is the number of times that a counter started again, because its state in Redis was unreadable.
	Restarted uint64
	// Cut is the number of times that a state was further ahead than its policy allows, because a rule was edited or the
	// clock of Redis was set back: see storekit.Counter.Cut.
	Cut uint64
	// Pool holds the statistics of the client's connections, in a cluster to all nodes.
	Pool redis.PoolStats
}

// sent holds the Stats that the queues of a store update. It is safe for concurrent use.
type sent struct {
	mu sync.Mutex
	Stats
}

func (s *sent) count(f func(s *Stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.Stats)
}

// Stats returns a copy of the current counts.
func (s *Store) Stats() (all Stats) {
	s.sent.count(func(s *Stats) { all = *s })
	all.Pool = *s.client.PoolStats()
	return all
}
