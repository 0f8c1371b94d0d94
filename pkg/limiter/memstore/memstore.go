// Package memstore keeps the counters of limits in this process's memory.
//
// [New] starts a store, which needs no configuration:
//
//	store, err := memstore.New(memstore.Options{})
//	...
//	defer store.Close()
//
// It is a [limiter.Store]: give it to [limiter.New]. Its counters belong to this process and end with it. Package
// redisstore shares them between processes.
//
// # Memory
//
// A counter of two integers (fixed_window, funnel, token_bucket) takes 50 to 63 bytes, whatever the length of its
// key. A sliding window takes 90 to 113 bytes and 8 for each segment, a sliding log as much and 16 to 32 for each hit
// in its window, and a limit that warms up 106 to 129.
//
// Counters that no longer matter are freed every few seconds. [Options].MaxKeys bounds the others; [Stats] has how
// many there are, and how many were forgotten because of the bound.
//
// # Time
//
// The store has a clock that never steps back. Limits that follow the clock on the wall, such as a quota per day,
// notice when it is set.
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
	DefaultMaxKeys    = 4_000_000 // at most 256 MB of counters of two integers
	DefaultSweepEvery = 5 * time.Second
)

// Options configure a Store. The zero value is ready to use.
type Options struct {
	// MaxKeys bounds memory: it is how many counters of two integers are kept, at about 64 bytes each. The
	// states of sliding windows and sliding logs have a bound of their own of the same size, in which one
	// counts as two, and its list as one for every 64 bytes. 0 is DefaultMaxKeys.
	//
	// At the bound the counters that have expired go first. If none has, each new counter replaces one of 16 or a few
	// more: the one with the shortest time until its limit is fully available again. A forgotten counter starts again from
	// nothing, so that a limit may then be exceeded; Stats.Evicted counts them.
	//
	// A counter that limits somebody is not replaced: one that has denied a request, or that has nothing left after
	// several hits. Such counters take up to seven eighths of the bound. Those beyond share the rest with the new ones,
	// and may be replaced as they are; Stats.LimitingEvicted counts them. So whoever is limited gains nothing by a flood
	// of keys of his own, whatever these are charged, and no key is unlimited or denied because the store is full.
	//
	// The bound is kept for each of up to 256 shards by itself, so that evictions begin when MaxKeys is
	// reached to within a few percent, and it is exceeded by at most one state a shard.
	MaxKeys int
	// Now is the clock, in microseconds since the Unix epoch. It is called with locks held, and it should not step back: a
	// counter that expired and was swept before it did starts again from nothing. Nil is the wall clock at New plus
	// the time elapsed since, which never does.
	Now func() int64
	// Wall is the wall clock, in microseconds since the Unix epoch, which may step: a process starts before the first
	// answer of a time server, and a machine that was suspended finds itself hours later. Windows that begin where the
	// wall clock says so follow it within 10 ms; no other limit notices. It is called with locks held. Nil is the
	// system's, or none where Now is set.
	Wall func() int64
	// SweepEvery is how often the state that no longer matters is freed. 0 is DefaultSweepEvery.
	SweepEvery time.Duration
}

// Store is a limiter.Store in memory. Its answers are never errors.
type Store struct {
	steady func() int64 // Options.Now
	wall   func() int64 // Options.Wall; nil: only steady
	due    atomic.Int64 // when the clocks are compared next, by the steady one
	ahead  atomic.Int64 // how far the wall clock is ahead of the steady one, in microseconds
	seeds  [2]maphash.Seed
	shards []shard
	budget int // of a shard's table, in bytes

	stop    context.CancelFunc
	stopped chan struct{}
}

var _ limiter.Store = (*Store)(nil)

// maxShards keeps the shards to lock in a few words.
const maxShards = 256

// shard holds the counters whose fingerprints end alike.
type shard struct {
	mu    sync.Mutex
	pairs table[pair]
	lists table[list]

	expired, evicted, limitingEvicted, cut uint64

	_ [64]byte // keeps the next shard's lock off this one's cache line
}

// New starts a store; Close ends it.
func New(o Options) (*Store, error) {
	switch {
	case o.MaxKeys < 0:
		return nil, fmt.Errorf("memory store: MaxKeys must not be negative, got %d", o.MaxKeys)
	case o.SweepEvery < 0:
		return nil, fmt.Errorf("memory store: SweepEvery must not be negative, got %s", o.SweepEvery)
	}
	o.MaxKeys, o.SweepEvery = cmp.Or(o.MaxKeys, DefaultMaxKeys), cmp.Or(o.SweepEvery, DefaultSweepEvery)
	if o.Now == nil {
		start := time.Now()
		epoch := start.UnixMicro()
		o.Now = func() int64 { return epoch + time.Since(start).Microseconds() }
		if o.Wall == nil {
			o.Wall = func() int64 { return time.Now().UnixMicro() }
		}
	}
	shards := maxShards
	for shards > 1 && o.MaxKeys/shards < 4*sample {
		shards /= 2
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Store{
		steady:  o.Now,
		wall:    o.Wall,
		seeds:   [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		shards:  make([]shard, shards),
		budget:  (o.MaxKeys + shards - 1) / shards * keyBytes,
		stop:    stop,
		stopped: make(chan struct{}),
	}
	go func() {
		defer close(s.stopped)
		panics.Restart(ctx.Done(), "sweep of expired counters", func() { s.sweepUntil(ctx, o.SweepEvery) })
	}()
	return s, nil
}

// inline is how many hits are decided without allocating.
const inline = 8

// Take decides one request; see limiter.Store. It waits for nothing but other requests' steps, so it decides
// also when ctx is done, and its only errors are those of storekit.Check.
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

// take locks every shard that the hits lie in, in the order of their indexes, so that two requests never wait
// for each other.
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

// compareEvery is how often the clocks are compared, in microseconds.
const compareEvery = 10_000

// clocks reads the clocks; the wall clock, if follow.
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

// Reset forgets the counter, and says whether there was anything to forget.
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

// load fills the counter with the key's state. To its step, a state that expired and was not yet swept is
// that of a limit that is fully available.
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

// save writes the counter's next state after one of its hits was answered, and makes room for it if the budget is
// exceeded. isFirst says whether it is the request's first hit of the counter.
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

// limits reports whether a counter that was hit by n limits somebody. One that has nothing left after its very first
// hit may be of a limit that leaves everybody nothing after one: it limits somebody once it has denied a hit.
func limits(counter *storekit.Counter, n int64, d *limiter.Decision, isFirst bool) bool {
	isFirst = isFirst && counter.State.A == 0 && counter.State.B == 0 && counter.State.List == nil
	return !d.Allowed || d.Remaining == 0 && (n > 1 || !isFirst)
}

// note notes that the counter denied a hit which was not charged.
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

// each calls do with every index of the set, lowest first.
func (s *shardSet) each(do func(i int)) {
	for w, word := range s {
		for ; word != 0; word &= word - 1 {
			do(64*w + bits.TrailingZeros64(word))
		}
	}
}
