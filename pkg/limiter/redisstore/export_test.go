package redisstore

import (
	"time"

	"github.com/redis/go-redis/v9"
)

// MaxWorkers exports maxWorkers.
const MaxWorkers = maxWorkers

// Queued returns the number of script calls in flight, including detached ones, and the number of requests that wait
// for the next call.
func (s *Store) Queued() (workers, waiting int) {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	return s.queue.workers + s.queue.detached(), len(s.queue.waiting)
}

// Workers returns the number of calls in flight that are not detached.
func (s *Store) Workers() int {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	return s.queue.workers
}

// ReadLateFor replaces LateAnswer. Call it before the store is used.
func (s *Store) ReadLateFor(d time.Duration) { s.queue.late = d }

// CanLend reports whether a request lends its goroutine to the next call.
func (s *Store) CanLend() bool { return s.queue.lends() && s.queue.quick.Load() }

// SetWall replaces this process's clock. Call it before the store is used.
func (s *Store) SetWall(now func() int64) { s.queue.batcher.now = now }

// SlotOf exports slotOf.
func SlotOf(key string) uint16 { return slotOf(key) }

// KeyInSlot exports keyInSlot.
func (s *Store) KeyInSlot(key string) string { return s.keyInSlot(key) }

// Key returns the name of a counter's key in Redis.
func (s *Store) Key(key string) string { return s.key(key) }

// CanLendAtAll reports whether the client ends a call at its deadline.
func (s *Store) CanLendAtAll() bool { return s.canLend }

// AddHook makes the store's client call h for each command.
func (s *Store) AddHook(h redis.Hook) { s.client.AddHook(h) }
