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
	// LeaseShare bounds a process's permits: at most capacity/LeaseShare. Limits with a lower capacity are strict.
	LeaseShare = 10
	// MaxLeases is the approximate maximum number of keys with permits on lease. Other keys are strict.
	MaxLeases = 1 << 16

	// leavePart bounds what a process acquires: at most the remaining hits divided by leavePart.
	leavePart = 4

	// maxHeat is the maximum number of keys that are not hot and whose requests are counted.
	maxHeat = 1 << 14
	// maxRenewals is the maximum number of renewals per batch. The store would shed more calls at once.
	maxRenewals = 1024
	// A key becomes hot with `hot` requests in one lease time, and then acquires permits in advance. It stays hot until it
	// has fewer than `warm` requests in one lease time.
	hot, warm = 4, 2
	// releaseTimeout bounds Close.
	releaseTimeout = time.Second
)

// Leases decides requests of hot keys without a call to the store, if the Route of the hits has a LeaseTime. A key with
// many requests acquires permits in advance, about as many as it needs for that time: the store charges them at once,
// requests spend them in this process, and the rest is released.
//
// Permits are charged before they are spent, so the admitted hits never exceed the charged hits. But the store counts a
// hit up to LeaseTime before the hit is admitted. In any span of time, the admitted hits can therefore exceed what the
// algorithm allows by the permits that were on lease when the span began: at most Capacity/LeaseShare per process.
//
// Leases decides a request only if permits cover all of its hits, and all hits have Mode Enforce and N > 0. All other
// requests go to the store unchanged. Decisions of Leases derive Remaining and ResetAfter from the store's last
// decision, so both are approximate.
type Leases struct {
	store *take.Chain
	start time.Time
	seed  maphash.Seed

	mu     sync.Mutex
	leases map[string]*lease
	heat   map[uint64]rate            // rates by hash of the key, for keys that are not hot
	due    map[time.Duration][]*lease // leases by time of their next renewal; each lease is in it once
	closed bool
	stats  LeaseStats

	ctx    context.Context    // context of renewals
	cancel context.CancelFunc // cancels ctx
	calls  sync.WaitGroup     // renewals in flight
	end    func() error       // runs close once
}

var _ take.Stage = (*Leases)(nil)

// LeaseStats has counts of Leases.
type LeaseStats struct {
	Keys     int    // number of hot keys
	Permits  int64  // charged permits that are neither spent nor released
	Answers  uint64 // requests decided without the store
	Acquired uint64 // permits acquired in advance
	// Released and Lost are permits that were not spent. A permit is lost if it could not be released, because the store
	// did not respond or the permit's window was about to end.
	Released, Lost uint64
}

// NewLeases returns the stage before store, from which it acquires permits. Close must be called to release them.
func NewLeases(store *take.Chain) *Leases {
	l := &Leases{
		store: store, start: time.Now(), seed: maphash.MakeSeed(),
		leases: make(map[string]*lease), heat: make(map[uint64]rate), due: make(map[time.Duration][]*lease),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.end = sync.OnceValue(l.close)
	return l
}

func (l *Leases) now() time.Duration { return time.Since(l.start) }

// Stats returns the sums over all keys.
func (l *Leases) Stats() LeaseStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	sum := l.stats
	sum.Keys = len(l.leases)
	return sum
}

// leasable reports whether permits may decide the request: each hit may be leased, and the hits are charged as a whole.
func leasable(hits []limiter.Hit) bool {
	for i := range hits {
		h := &hits[i]
		if leaseTime(h) <= 0 || h.Mode != limiter.Enforce || h.N <= 0 || share(h.Policy) <= 0 {
			return false
		}
	}
	return len(hits) == 1 || len(hits) > 1 && !limit.ByItself(hits)
}

// share returns the maximum number of the limit's permits that this process may have on lease.
func share(p *limiter.Policy) int64 { return p.Capacity() / LeaseShare }

// Before implements take.Stage. It answers a call if permits cover all its hits. The store decides other calls, while
// permits for their hot keys are acquired in the background.
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

// After implements take.Stage. It keeps the store's decisions on hot keys.
func (l *Leases) After(c *take.Call) {
	if c.MayLease && c.Err == nil {
		l.learn(c.Hits, c.Out, c.Sent)
	}
}

// spend decides a request if permits cover all its hits. Otherwise it changes nothing.
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

// undo reverts what spend has just spent. The caller must hold l.mu.
func (l *Leases) undo(hits []limiter.Hit) {
	for i := range hits {
		e := l.leases[hits[i].Key]
		e.permits += hits[i].N
		e.rate.requests[0]--
		e.rate.hits[0] -= hits[i].N
		l.stats.Permits += hits[i].N
	}
}

// acquire counts a hit that the store decides. If the key is hot and has too few permits, it begins to acquire some.
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

// learn keeps the store's decisions on hot keys.
func (l *Leases) learn(hits []limiter.Hit, out []limiter.Decision, sent time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range hits {
		if e := l.leases[hits[i].Key]; e != nil && e.lastAt < sent {
			e.learn(&out[i], sent)
		}
	}
}

// find counts the hit and returns the key's lease, nil if the key is not hot. The caller must hold l.mu.
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
		l.schedule(e, (now + span).Truncate(time.Millisecond))
		return e
	}
	e.rate.add(now, span, 1, h.N)
	return e
}

// warm counts a hit of a key that is not hot, and returns the key's rate. The caller must hold l.mu.
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

// Reset must be called after any process has reset the counter in the store. The key's permits were charged to the old
// counter, so they are neither spent nor released. Permits in flight may still be spent, within Leases' bound.
func (l *Leases) Reset(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.leases[key]; e != nil {
		l.stats.Permits -= e.permits
		l.stats.Lost += uint64(e.permits) //nolint:gosec // not below 0
		e.permits = 0
	}
}
