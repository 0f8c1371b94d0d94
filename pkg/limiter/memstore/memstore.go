// Package memstore keeps the counters of limits in memory, in this process.
//
// [New] starts a store, which needs no configuration:
//
//	store, err := memstore.New(memstore.Options{})
//	...
//	defer store.Close()
//
// Pass the store to [limiter.New]. Its counters belong to this process and are lost when the process ends. Package
// redisstore shares counters between processes.
//
// # Memory
//
// A counter of two integers takes 50 to 63 bytes, whatever the length of its key. A sliding_window takes 90 to 113
// bytes plus 8 per segment, a sliding_log or concurrency 90 to 113 bytes plus 16 to 32 per hit in its window, and a
// smooth_warming_up 106 to 129 bytes. The other algorithms have counters of two integers.
//
// Expired counters are freed every few seconds. [Options].MaxCounters bounds the number of other counters. [Stats]
// reports how many counters there are, and how many were evicted because of the bound.
//
// # Time
//
// The store's default clock never steps back. Limits whose windows follow the wall clock, such as a quota per day,
// follow the wall clock when it is set.
package memstore

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// Defaults of Options.
const (
	DefaultMaxCounters = 4_000_000 // at most 256 MB for counters of two integers
	DefaultSweepEvery  = 5 * time.Second
)

// Options configure a Store. The zero value is ready to use.
type Options struct {
	// MaxCounters is the maximum number of counters of two integers, at about 64 bytes each. Counters with a list
	// (sliding_window, sliding_log, concurrency, smooth_warming_up) have a separate bound of as many bytes, in which each
	// of them counts as two, and its list as one per 64 bytes. 0 means DefaultMaxCounters.
	//
	// At the bound, expired counters are freed first. If a sample of about 16 counters has none, each new counter replaces
	// the counter of the sample whose limit will be fully available again first. An evicted counter starts again from
	// zero, so a limit may be exceeded; Stats.Evicted counts such evictions.
	//
	// A counter limits a client if it has denied a request, or has nothing left after several hits. Limiting counters are
	// not evicted while they take at most seven eighths of the bound. Further limiting counters share the rest with new
	// counters, and may be evicted; Stats.LimitingEvicted counts them. So a limited client gains nothing by a flood of new
	// keys, whatever they are charged, and a full store neither denies a key nor leaves it unlimited.
	//
	// The bound is split evenly over up to 256 shards. So evictions begin within a few percent of MaxCounters, and each
	// shard may exceed its part by one state.
	MaxCounters int
	// Now returns the time in microseconds since the Unix epoch. It is called with locks held. It should not step back,
	// because a counter that was freed before the step then starts again from zero. nil means the wall clock at New plus
	// the elapsed time, which never steps back.
	Now func() int64
	// Wall returns the wall clock in microseconds since the Unix epoch. It may step, for example when a time server first
	// responds, or when a suspended machine resumes. Windows that begin at wall-clock times follow it within 10 ms; other
	// limits ignore it. It is called with locks held. nil means the system's clock, or Now if Now is set.
	Wall func() int64
	// SweepEvery is the interval at which expired counters are freed. 0 means DefaultSweepEvery.
	SweepEvery time.Duration
}

// Store is a limiter.Store in memory. It is safe for concurrent use. Take fails only for invalid hits.
type Store struct {
	steady func() int64 // Options.Now
	wall   func() int64 // Options.Wall; nil if steady is the only clock
	due    atomic.Int64 // steady time of the next comparison of the clocks
	ahead  atomic.Int64 // how far the wall clock is ahead of the steady clock, microseconds
	seeds  [2]maphash.Seed
	shards []shard
	budget int // maximum weight of each table of a shard, bytes

	stop    context.CancelFunc
	stopped chan struct{}
}

var _ limiter.Store = (*Store)(nil)

// maxShards is small enough for a shardSet to take a few words.
const maxShards = 256

// shard holds a part of the counters, by their fingerprints.
type shard struct {
	mu    sync.Mutex
	pairs table[pair]
	lists table[list]

	expired, evicted, limitingEvicted, cut uint64

	_ [64]byte // keeps the locks of two shards on different cache lines
}

// New starts a store and a goroutine that frees expired counters. The error says which option is wrong.
func New(o Options) (*Store, error) {
	switch {
	case o.MaxCounters < 0:
		return nil, fmt.Errorf("memory store: MaxCounters must not be negative, got %d", o.MaxCounters)
	case o.SweepEvery < 0:
		return nil, fmt.Errorf("memory store: SweepEvery must not be negative, got %s", o.SweepEvery)
	}
	o.MaxCounters, o.SweepEvery = cmp.Or(o.MaxCounters, DefaultMaxCounters), cmp.Or(o.SweepEvery, DefaultSweepEvery)
	if o.Now == nil {
		start := time.Now()
		epoch := start.UnixMicro()
		o.Now = func() int64 { return epoch + time.Since(start).Microseconds() }
		if o.Wall == nil {
			o.Wall = func() int64 { return time.Now().UnixMicro() }
		}
	}
	shards := maxShards
	for shards > 1 && o.MaxCounters/shards < 4*sample {
		shards /= 2
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Store{
		steady:  o.Now,
		wall:    o.Wall,
		seeds:   [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		shards:  make([]shard, shards),
		budget:  (o.MaxCounters + shards - 1) / shards * keyBytes,
		stop:    stop,
		stopped: make(chan struct{}),
	}
	go func() {
		defer close(s.stopped)
		panics.Restart(ctx.Done(), "sweep of expired counters", func() { s.sweepUntil(ctx, o.SweepEvery) })
	}()
	return s, nil
}

// inline is the maximum number of hits that are decided without an allocation.
const inline = 8

// Take decides one request; see limiter.Store. It waits only for the steps of other requests, so it decides even if ctx
// is done. Its only errors are those of storekit.Check.
func (s *Store) Take(_ context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	switch n := len(hits); {
	case n == 1:
		return s.takeOne(hits, out)
	case n <= inline:
		var ids [inline]fingerprint
		var counters [inline]storekit.Counter
		return s.take(hits, out, ids[:n], counters[:n])
	default:
		return s.take(hits, out, make([]fingerprint, n), make([]storekit.Counter, n))
	}
}

func (s *Store) takeOne(hits []limiter.Hit, out []limiter.Decision) error {
	var counters [1]storekit.Counter
	if err := storekit.Link(hits, out, counters[:]); err != nil {
		return err
	}
	p, id := hits[0].Policy, s.fingerprint(hits[0].Key)
	sh := s.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := s.clocks(p.Core().OnWall)
	sh.load(id, p, &counters[0])
	storekit.Decide(now, hits, counters[:], out)
	s.save(sh, id, &hits[0], now.Steady, &counters[0], &out[0], true)
	return nil
}

// take locks the shards of all hits in the order of their indexes, so that two requests never deadlock.
func (s *Store) take(hits []limiter.Hit, out []limiter.Decision, ids []fingerprint, counters []storekit.Counter) error {
	if err := storekit.Link(hits, out, counters); err != nil {
		return err
	}
	var locks shardSet
	follow := false
	for i := range hits {
		ids[i] = s.fingerprint(hits[i].Key)
		locks.add(s.index(ids[i]))
		follow = follow || hits[i].Policy.Core().OnWall
	}
	locks.each(func(i int) { s.shards[i].mu.Lock() })
	defer locks.each(func(i int) { s.shards[i].mu.Unlock() })
	now := s.clocks(follow)
	for i := range hits {
		if counters[i].First() == i {
			s.shard(ids[i]).load(ids[i], hits[i].Policy, &counters[i])
		}
	}
	storekit.Decide(now, hits, counters, out)
	for i := range hits {
		first := counters[i].First()
		s.save(s.shard(ids[i]), ids[i], &hits[i], now.Steady, &counters[first], &out[i], i == first)
	}
	return nil
}

// compareEvery is the interval at which the clocks are compared, in microseconds.
const compareEvery = 10_000

// clocks reads the steady clock, and if follow is set, the wall clock.
func (s *Store) clocks(follow bool) storekit.Clocks {
	now := s.steady()
	if !follow || s.wall == nil {
		return storekit.Clocks{Steady: now, Wall: now}
	}
	if now >= s.due.Load() {
		s.due.Store(now + compareEvery)
		s.ahead.Store(s.wall() - now)
	}
	return storekit.Clocks{Steady: now, Wall: now + s.ahead.Load()}
}

func (s *Store) fingerprint(key string) fingerprint {
	return fingerprint{hi: maphash.String(s.seeds[0], key), lo: maphash.String(s.seeds[1], key)}
}

func (s *Store) index(id fingerprint) int {
	return int(id.lo % uint64(len(s.shards))) //nolint:gosec // below len(s.shards)
}

func (s *Store) shard(id fingerprint) *shard { return &s.shards[s.index(id)] }

// Reset forgets the counter of the key, and reports whether there was one.
func (s *Store) Reset(key string) (existed bool) {
	id := s.fingerprint(key)
	sh := s.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	before := sh.pairs.live + sh.lists.live
	sh.pairs.remove(id)
	sh.lists.remove(id)
	return sh.pairs.live+sh.lists.live < before
}

// Clear forgets all counters.
func (s *Store) Clear() {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sh.pairs, sh.lists = table[pair]{}, table[list]{}
		sh.mu.Unlock()
	}
}

// load sets counter's State to the key's state. A step treats an expired state as a fully available limit.
func (sh *shard) load(id fingerprint, p *limiter.Policy, counter *storekit.Counter) {
	if p.Core().Is(step.KeepsList) {
		if l := sh.lists.get(id); l.of == p.Algorithm() {
			counter.State = l.State
		}
		return
	}
	v := sh.pairs.get(id)
	counter.State.A, counter.State.B = v.a, v.b
}

// save writes the counter's next state after one of its hits was decided, and evicts counters if the budget is
// exceeded. isFirst reports whether the hit is the request's first hit of the counter.
func (s *Store) save(
	sh *shard, id fingerprint, h *limiter.Hit, now int64, counter *storekit.Counter, d *limiter.Decision, isFirst bool,
) {
	p := h.Policy
	if !counter.Changed {
		if !d.Allowed {
			sh.note(id, p, s.budget)
		}
		return
	}
	if counter.Cut {
		sh.cut++
	}
	keep := counter.KeepFor.Microseconds() // a step's durations are whole microseconds
	m := newMark(now+keep, limits(counter, h.N, d, isFirst))
	switch {
	case keep == 0 && p.Core().Is(step.KeepsList):
		sh.lists.remove(id)
	case keep == 0:
		sh.pairs.remove(id)
	case p.Core().Is(step.KeepsList):
		sh.lists.put(id, sh.lists.get(id).follow(p, counter.Next), m, now, s.budget)
		makeRoom(sh, &sh.lists, now, s.budget, id)
	default:
		sh.pairs.put(id, pair{a: counter.Next.A, b: counter.Next.B}, m, now, s.budget)
		makeRoom(sh, &sh.pairs, now, s.budget, id)
	}
}

// limits reports whether the counter limits a client after a hit of cost n, because it denied the hit or has nothing
// left. A first hit of cost 1 that leaves nothing does not count, because a limit of 1 never leaves more.
func limits(counter *storekit.Counter, n int64, d *limiter.Decision, isFirst bool) bool {
	isFirst = isFirst && counter.State.A == 0 && counter.State.B == 0 && counter.State.List == nil
	return !d.Allowed || d.Remaining == 0 && (n > 1 || !isFirst)
}

// note marks the counter as limiting after it denied a hit that was not charged.
func (sh *shard) note(id fingerprint, p *limiter.Policy, budget int) {
	if p.Core().Is(step.KeepsList) {
		sh.lists.note(id, budget)
	} else {
		sh.pairs.note(id, budget)
	}
}

func makeRoom[S state](sh *shard, t *table[S], now int64, budget int, keep fingerprint) {
	for t.weight > budget && t.live > 1 {
		expired, evicted, limited := t.evict(now, keep)
		sh.expired += uint64(expired)         //nolint:gosec // a count
		sh.evicted += uint64(evicted)         //nolint:gosec // a count
		sh.limitingEvicted += uint64(limited) //nolint:gosec // a count
	}
}

// shardSet is a set of shard indexes.
type shardSet [maxShards / 64]uint64

func (s *shardSet) add(i int) { s[i/64] |= 1 << (i % 64) }

// each calls do with every index of the set, in ascending order.
func (s *shardSet) each(do func(i int)) {
	for w, word := range s {
		for ; word != 0; word &= word - 1 {
			do(64*w + bits.TrailingZeros64(word))
		}
	}
}
