package guard

import (
	"context"
	"hash/maphash"
	"math"
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/internal/take"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Bounds of Leases.
const (
	// LeaseShare is how much of a limit's capacity may be on lease in one process: one part of this many. Limits with a
	// smaller capacity are strict.
	LeaseShare = 10
	// MaxLeases is about the most keys with permits on lease. Others are strict.
	MaxLeases = 1 << 16

	// A process has at most one part of this many of what was left when it took permits.
	leavePart = 4

	leaseShards = 64
	leasesShard = MaxLeases / leaseShards
	// A key gets permits ahead from the request on that is the hot-th in one lease, until it has fewer than warm.
	hot, warm = 4, 2
	// releaseTimeout bounds Close.
	releaseTimeout = time.Second
)

// Leases decide requests of hot keys without asking the store behind them, where the hit's Route
// allows it, by a LeaseTime. A key that is asked for often acquires permits in advance, about as many as it needs for
// that time: the store charges them at once, requests spend them here, and what is left is released.
//
// Permits are charged before they are spent, so no more pass than the store has charged. But the store counts a hit
// when its permit was charged, which is up to a LeaseTime before it passes: in any span of time, up to as many hits
// more than the algorithm allows can pass as permits were on lease when it began. That is at most Capacity/LeaseShare
// for each process.
//
// Only requests are decided here whose hits may all be leased, with Mode Enforce and N > 0, and are all covered. All
// others go to the store as they are. Answers of Leases have the Remaining and ResetAfter of the store's last answer,
// not those of now.
type Leases struct {
	store  *take.Chain
	start  time.Time
	seed   maphash.Seed
	shards [leaseShards]leaseShard

	mu  sync.Mutex
	due map[time.Duration][]*lease // when to look at which lease again; each is in it once

	ctx    context.Context    // of renewals
	cancel context.CancelFunc // ends them
	calls  sync.WaitGroup     // renewals under way
	end    func() error       // close, once
}

var _ take.Stage = (*Leases)(nil)

// leaseShard holds the leases of keys whose hashes end alike.
type leaseShard struct {
	mu     sync.Mutex
	leases map[string]*lease
	heat   []heat
	closed bool
	stats  LeaseStats

	_ [64]byte // keeps the next shard's lock off this one's cache line
}

// LeaseStats says what Leases do.
type LeaseStats struct {
	Keys     int    // that are hot
	Permits  int64  // charged, and neither spent nor released
	Answers  uint64 // requests that were decided without the store
	Acquired uint64 // permits acquired in advance
	// Released and Lost are permits that were not spent. Lost ones could not be released, since the store did not
	// answer or their window was about to end.
	Released, Lost uint64
}

// NewLeases makes leases of permits of a store, in front of which the stage stands; Close ends them.
func NewLeases(store *take.Chain) *Leases {
	l := &Leases{store: store, start: time.Now(), seed: maphash.MakeSeed(), due: make(map[time.Duration][]*lease)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.end = sync.OnceValue(l.close)
	for i := range l.shards {
		l.shards[i].leases = make(map[string]*lease)
		l.shards[i].heat = make([]heat, leasesShard/len(heat{}))
	}
	return l
}

// now is the time since the start.
func (l *Leases) now() time.Duration { return time.Since(l.start) }

// Stats are summed over all keys.
func (l *Leases) Stats() (sum LeaseStats) {
	for i := range l.shards {
		sh := &l.shards[i]
		sh.mu.Lock()
		sum.Keys += len(sh.leases)
		sum.Permits += sh.stats.Permits
		sum.Answers += sh.stats.Answers
		sum.Acquired += sh.stats.Acquired
		sum.Released += sh.stats.Released
		sum.Lost += sh.stats.Lost
		sh.mu.Unlock()
	}
	return sum
}

// leasable reports whether leases may decide the request: each of its hits may be, and is charged with all others or
// not at all.
func leasable(hits []limiter.Hit) bool {
	for i := range hits {
		h := &hits[i]
		if leaseTime(h) <= 0 || h.Mode != limiter.Enforce || h.N <= 0 || share(h.Policy) <= 0 {
			return false
		}
	}
	return len(hits) == 1 || len(hits) > 1 && !limit.ByItself(hits)
}

// share is the most permits of the limit that this process has on lease.
func share(p *limiter.Policy) int64 { return p.Capacity() / LeaseShare }

// Before implements take.Stage. It answers a call whose hits are all covered by permits. The store decides all others;
// what their hot keys need next is acquired beside them.
func (l *Leases) Before(c *take.Call) (answered bool) {
	if c.MayLease = leasable(c.Hits); !c.MayLease {
		return false
	}
	if l.spend(c.Hits, c.Out) {
		return true
	}
	c.Sent = l.now()
	for i := range c.Hits {
		l.acquire(&c.Hits[i], c.Sent)
	}
	return false
}

// After implements take.Stage. It keeps what the store said of hot keys.
func (l *Leases) After(c *take.Call) {
	if c.MayLease && c.Err == nil {
		l.learn(c.Hits, c.Out, c.Sent)
	}
}

// inline is how many hits need no memory of their own to be spent.
const inline = 8

// spend decides a request by permits, if they cover all its hits. Otherwise it changes nothing.
func (l *Leases) spend(hits []limiter.Hit, out []limiter.Decision) bool {
	now := l.now()
	if len(hits) == 1 {
		_, ok := l.spendHit(&hits[0], now, &out[0], true)
		return ok
	}
	var room [inline]spent
	done := room[:0]
	for i := range hits {
		s, ok := l.spendHit(&hits[i], now, &out[i], i == len(hits)-1)
		if !ok {
			for j := range done {
				done[j].undo()
			}
			return false
		}
		done = append(done, s)
	}
	return true
}

// spendHit decides a hit by permits, if there are enough. The last hit of a request counts as the request's answer.
func (l *Leases) spendHit(h *limiter.Hit, now time.Duration, out *limiter.Decision, isLast bool) (spent, bool) {
	sh, e := l.lock(h.Key)
	defer sh.mu.Unlock()
	if e == nil || sh.closed || !e.spend(h, now, out) {
		return spent{}, false
	}
	sh.stats.Permits -= h.N
	e.rate.add(now, e.span, 1, h.N)
	if isLast {
		sh.stats.Answers++
	}
	return spent{e, e.grant, h.N}, true
}

// acquire counts a hit that the store decides, and begins to acquire permits if its key is hot and has too few.
func (l *Leases) acquire(h *limiter.Hit, now time.Duration) {
	sh, sum := l.shard(h.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if e := l.find(sh, sum, h, now); e != nil && !e.isRenewing && !e.covers(h, now) {
		e.follow(h)
		if r := l.begin(e, now); r != nil {
			panics.Go("call of leases", func() { _ = l.run(l.ctx, r) })
		}
	}
}

// learn keeps what the store said of hot keys.
func (l *Leases) learn(hits []limiter.Hit, out []limiter.Decision, sent time.Duration) {
	for i := range hits {
		sh, e := l.lock(hits[i].Key)
		if e != nil && e.lastAt < sent {
			e.learn(&out[i], sent)
		}
		sh.mu.Unlock()
	}
}

func (l *Leases) shard(key string) (sh *leaseShard, sum uint64) {
	sum = maphash.String(l.seed, key)
	return &l.shards[sum%leaseShards], sum
}

// lock locks the shard of a key, and returns the key's lease, nil if it is not hot.
func (l *Leases) lock(key string) (*leaseShard, *lease) {
	sh, _ := l.shard(key)
	sh.mu.Lock()
	return sh, sh.leases[key]
}

// find is the key's lease, nil if it is not hot. The hit is counted. The shard is locked.
func (l *Leases) find(sh *leaseShard, sum uint64, h *limiter.Hit, now time.Duration) *lease {
	if sh.closed {
		return nil
	}
	e, span := sh.leases[h.Key], leaseTime(h)
	if e == nil {
		count := sh.heat[sum/leaseShards%uint64(len(sh.heat))].add(sum, now/span)
		if count < hot || len(sh.leases) >= leasesShard {
			return nil
		}
		e = &lease{hit: limiter.Hit{Key: h.Key}, shard: sh, last: limiter.Decision{Remaining: math.MaxInt64}, lastAt: -1}
		e.follow(h)
		e.rate.add(now, span, int64(count-1), h.N*int64(count-1))
		sh.leases[h.Key] = e
		l.lookAgain(e, (now + span).Truncate(time.Millisecond))
	}
	e.rate.add(now, span, 1, h.N)
	return e
}

// heat counts the requests of a few keys that are not hot, those whose hashes lead here.
type heat [4]struct{ tag, period, count uint32 }

// add counts a request in a period, and returns how many of its key there were. A key that is new takes the place of
// the one that had the fewest requests.
func (s *heat) add(sum uint64, period time.Duration) uint32 {
	tag, now := uint32(sum>>32), uint32(period) //nolint:gosec // both may wrap
	victim, fewest := &s[0], uint32(math.MaxUint32)
	for i := range s {
		slot := &s[i]
		if slot.period != now {
			slot.count = 0
		}
		if slot.tag == tag {
			victim = slot
			break
		}
		if slot.count < fewest {
			victim, fewest = slot, slot.count
		}
	}
	if victim.tag != tag {
		victim.tag, victim.count = tag, 0
	}
	victim.period = now
	victim.count++
	return victim.count
}
