package memstore

import (
	"context"
	"time"
	"unsafe"
)

// chunk is how many slots are swept under one lock: a few microseconds' work.
const chunk = 1024

// sweepUntil frees expired state until ctx is done.
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

// sweep walks one table of the shard, letting go of its lock after each chunk, and returns the memory of a
// table that has become far too large. Only that copy looks at a whole table under its lock.
func sweep[S state](ctx context.Context, s *Store, sh *shard, t *table[S]) {
	for from := 0; ctx.Err() == nil; {
		if from = sweepChunk(s, sh, t, from); from == 0 {
			return
		}
	}
}

// sweepChunk sweeps a chunk, and returns where the next one begins, or 0 after the last.
func sweepChunk[S state](s *Store, sh *shard, t *table[S], from int) (next int) {
	sh.mu.Lock()
	defer sh.mu.Unlock() // also if it panics
	next, expired := t.sweep(s.steady(), from, chunk)
	sh.expired += uint64(expired) //nolint:gosec // a count
	if next == 0 {
		t.shrink()
	}
	return next
}

// Close stops sweeping. The store goes on answering.
func (s *Store) Close() error {
	s.stop()
	<-s.stopped
	return nil
}

// Stats is what a store holds and what became of what it held.
type Stats struct {
	Keys    int    // counters held, including those that expired and are not yet swept
	Bytes   int64  // about what their state takes
	Expired uint64 // counters freed because they no longer mattered
	Evicted uint64 // counters that still mattered, forgotten because Options.MaxKeys was reached
	// LimitingEvicted are those of Evicted that limited somebody, since seven eighths of the others do as well.
	LimitingEvicted uint64
	Cut             uint64 // counters whose state was further ahead than their policy can put it; see storekit.Counter
}

// Stats adds up the shards, one after the other.
func (s *Store) Stats() (sum Stats) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sum.Keys += sh.pairs.live + sh.lists.live
		sum.Bytes += sh.pairs.bytes() + sh.lists.bytes()
		sum.Expired += sh.expired
		sum.Evicted += sh.evicted
		sum.LimitingEvicted += sh.limitingEvicted
		sum.Cut += sh.cut
		sh.mu.Unlock()
	}
	return sum
}

// bytes is the size of the table and of what its states point to.
func (t *table[S]) bytes() int64 {
	var none S
	return int64(len(t.slots)*int(unsafe.Sizeof(slot[S]{}))) + int64(t.weight-t.live*none.weight())
}
