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

	// maxHeat is the most keys whose requests are counted while they are not hot.
	maxHeat = 1 << 14
	// maxRenewals is the most renewals of a batch: more calls at once would be shed.
	maxRenewals = 1024
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
	store *take.Chain
	start time.Time
	seed  maphash.Seed

	mu     sync.Mutex
	leases map[string]*lease
	heat   map[uint64]rate            // by hashes of keys that are not hot
	due    map[time.Duration][]*lease // when to look at which lease again; each is in it once
	closed bool
	stats  LeaseStats

	ctx    context.Context    // of renewals
	cancel context.CancelFunc // ends them
	calls  sync.WaitGroup     // renewals under way
	end    func() error       // close, once
}

var _ take.Stage = (*Leases)(nil)

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
	l := &Leases{
		store: store, start: time.Now(), seed: maphash.MakeSeed(),
		leases: make(map[string]*lease), heat: make(map[uint64]rate), due: make(map[time.Duration][]*lease),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.end = sync.OnceValue(l.close)
	return l
}

// now is the time since the start.
func (l *Leases) now() time.Duration { return time.Since(l.start) }

// Stats returns the sums of all keys.
func (l *Leases) Stats() LeaseStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	sum := l.stats
	sum.Keys = len(l.leases)
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

// spend decides a request by permits, if they cover all its hits. Otherwise it changes nothing.
func (l *Leases) spend(hits []limiter.Hit, out []limiter.Decision) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for i := range hits {
		e := l.leases[hits[i].Key]
		if e == nil || l.closed || !e.spend(&hits[i], now, &out[i]) {
			l.undo(hits[:i])
			return false
		}
		l.stats.Permits -= hits[i].N
	}
	l.stats.Answers++
	return true
}

// undo takes back what spend has just done. The caller holds l.mu.
func (l *Leases) undo(hits []limiter.Hit) {
	for i := range hits {
		e := l.leases[hits[i].Key]
		e.permits += hits[i].N
		e.rate.requests[0]--
		e.rate.hits[0] -= hits[i].N
		l.stats.Permits += hits[i].N
	}
}

// acquire counts a hit that the store decides, and begins to acquire permits if its key is hot and has too few.
func (l *Leases) acquire(h *limiter.Hit, now time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.find(h, now); e != nil && !e.isRenewing && !e.covers(h, now) {
		e.follow(h)
		if r := l.begin(e, now); r != nil {
			panics.Go("call of leases", func() { _ = l.run(l.ctx, r) })
		}
	}
}

// learn keeps what the store said of hot keys.
func (l *Leases) learn(hits []limiter.Hit, out []limiter.Decision, sent time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range hits {
		if e := l.leases[hits[i].Key]; e != nil && e.lastAt < sent {
			e.learn(&out[i], sent)
		}
	}
}

// find returns the key's lease, nil if it is not hot. It counts the hit. The caller holds l.mu.
func (l *Leases) find(h *limiter.Hit, now time.Duration) *lease {
	if l.closed {
		return nil
	}
	e, span := l.leases[h.Key], leaseTime(h)
	if e == nil {
		heat := l.warm(h, now, span)
		if heat.requests[0] < hot || len(l.leases) >= MaxLeases {
			return nil
		}
		e = &lease{
			hit: limiter.Hit{Key: h.Key}, rate: heat, last: limiter.Decision{Remaining: math.MaxInt64}, lastAt: -1,
		}
		e.follow(h)
		l.leases[h.Key] = e
		l.lookAgain(e, (now + span).Truncate(time.Millisecond))
		return e
	}
	e.rate.add(now, span, 1, h.N)
	return e
}

// warm counts a hit of a key that is not hot, and returns how many there were. Where many keys come, it forgets all of
// them now and then. The caller holds l.mu.
func (l *Leases) warm(h *limiter.Hit, now, span time.Duration) rate {
	sum := maphash.String(l.seed, h.Key)
	r := l.heat[sum]
	r.add(now, span, 1, h.N)
	if len(l.heat) >= maxHeat {
		clear(l.heat)
	}
	l.heat[sum] = r
	return r
}

// Reset is called after the store has forgotten the counter, by any process: permits that were charged to it are of a
// counter that is no more, so they are neither spent nor released to the new one. Those of a call that is under way
// meanwhile may be; with them no more passes than Leases' bound says of any span of time.
func (l *Leases) Reset(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.leases[key]; e != nil {
		l.stats.Permits -= e.permits
		l.stats.Lost += uint64(e.permits) //nolint:gosec // not below 0
		e.permits = 0
	}
}
