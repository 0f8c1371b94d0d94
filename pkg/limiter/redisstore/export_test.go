package redisstore

import (
	"time"

	"github.com/redis/go-redis/v9"
)

// MaxWorkers is maxWorkers.
const MaxWorkers = maxWorkers

// Queued is how many script calls are under way, those that are detached too, and how many requests wait for the
// next one.
func (s *Store) Queued() (workers, waiting int) {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	return s.queue.workers + s.queue.detached(), len(s.queue.waiting)
}

// Workers is how many of the calls under way are not detached.
func (s *Store) Workers() int {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	return s.queue.workers
}

// ReadLateFor puts another time in the place of LateAnswer, before the store is used.
func (s *Store) ReadLateFor(d time.Duration) { s.queue.late = d }

// CanLend reports whether a request lends its goroutine to the next call.
func (s *Store) CanLend() bool { return s.queue.lends() && s.queue.quick.Load() }

// SetWall puts another clock in the place of this process's, before the store is used.
func (s *Store) SetWall(now func() int64) { s.queue.batcher.now = now }

// SlotOf is slotOf.
func SlotOf(key string) uint16 { return slotOf(key) }

// KeyInSlot is keyInSlot.
func (s *Store) KeyInSlot(key string) string { return s.keyInSlot(key) }

// Key is a counter's name in Redis.
func (s *Store) Key(key string) string { return s.key(key) }

// CanLendAtAll reports whether the client ends a call at its deadline.
func (s *Store) CanLendAtAll() bool { return s.canLend }

// AddHook has h called for the store's commands.
func (s *Store) AddHook(h redis.Hook) { s.client.AddHook(h) }
