package memstore

import (
	"context"
	"time"
	"unsafe"
)

// chunk is the number of slots that are swept under one lock, which takes a few microseconds.
const chunk = 1024

// sweepUntil frees expired counters at the interval every until ctx is done.
func (s *Store) sweepUntil(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			for i := range s.shards {
				sh := &s.shards[i]
				sweep(ctx, s, sh, &sh.pairs)
				sweep(ctx, s, sh, &sh.lists)
			}
		}
	}
}

// sweep frees the expired counters of one table of the shard. It releases the lock after each chunk, except while it
// shrinks a table that has become far too large.
func sweep[S state](ctx context.Context, s *Store, sh *shard, t *table[S]) {
	for from := 0; ctx.Err() == nil; {
		if from = sweepChunk(s, sh, t, from); from == 0 {
			return
		}
	}
}

// sweepChunk sweeps one chunk and returns where the next chunk begins, or 0 after the last chunk.
func sweepChunk[S state](s *Store, sh *shard, t *table[S], from int) (next int) {
	sh.mu.Lock()
	defer sh.mu.Unlock() // even if the sweep panics
	next, expired := t.sweep(s.steady(), from, chunk)
	sh.expired += uint64(expired) //nolint:gosec // a count
	if next == 0 {
		t.shrink()
	}
	return next
}

// Close stops the freeing of expired counters. Take still works afterwards. The error is always nil.
func (s *Store) Close() error {
	s.stop()
	<-s.stopped
	return nil
}

// Stats holds the size of a store, and counts of the counters that it no longer holds.
type Stats struct {
	Counters int    // counters in the store, including those that have expired and are not yet freed
	Bytes    int64  // approximate size of their state
	Expired  uint64 // counters freed after they had expired
	Evicted  uint64 // counters evicted before they expired, because Options.MaxCounters was reached
	// LimitingEvicted is the part of Evicted that limited a client. It grows if limiting counters exceed 7/8 of the bound.
	LimitingEvicted uint64
	Cut             uint64 // states that were further ahead than their policy allows; see storekit.Counter
}

// Stats returns the sums over the shards, which are read one after another.
func (s *Store) Stats() (sum Stats) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sum.Counters += sh.pairs.live + sh.lists.live
		sum.Bytes += sh.pairs.bytes() + sh.lists.bytes()
		sum.Expired += sh.expired
		sum.Evicted += sh.evicted
		sum.LimitingEvicted += sh.limitingEvicted
		sum.Cut += sh.cut
		sh.mu.Unlock()
	}
	return sum
}

// bytes returns the size of the table and of the lists of its states.
func (t *table[S]) bytes() int64 {
	var none S
	return int64(len(t.slots)*int(unsafe.Sizeof(slot[S]{}))) + int64(t.weight-t.live*none.weight())
}
