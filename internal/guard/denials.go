package guard

import (
	"hash/maphash"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/take"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

var _ take.Stage = (*Denials)(nil)

// maxAge bounds how long a denial is cached, and therefore how long a counter that the store has lost may be denied.
const maxAge = 5 * time.Minute

// A key belongs to one set of slots. 131,072 slots take about 20 MB when full.
const (
	sets  = 1 << 14
	slots = 8
)

// Denials caches denials of the store, and repeats each until it ends. Until then the same cost on the same counter
// cannot be admitted, whatever other requests arrive, unless hits are refunded. Its owner must therefore call Forget
// for each refund by any process, and Believe(false) while refunds may be missed.
//
// It answers a request if each of its hits has a cached denial. It caches only denials that end at a known time
// (cacheable). The request is not charged, not even with charge_denied: full, the default of fixed windows, because the
// window is full already. With limiter.Hit.ByItself, a denial that must be charged goes to the store, unless Uncharged.
type Denials struct {
	// Uncharged also answers hits whose denial must be charged. Set it before the first call.
	Uncharged bool

	now func() int64 // microseconds

	seed     maphash.Seed
	sets     []set
	believes atomic.Bool
	forgets  atomic.Uint64 // number of calls of Forget and Drop
	dropped  atomic.Uint64 // value of forgets at the last Drop
	answered atomic.Uint64
}

type set struct {
	forgotten atomic.Uint64 // value of Denials.forgets at the last Forget of a key of the set
	slots     [slots]atomic.Pointer[denial]
}

// denial is a cached decision. It is immutable. Its times are in microseconds of Denials.now.
type denial struct {
	key       string
	policy    *limiter.Policy
	store     string // name of the store that denied
	need      int64  // cost in hits
	remaining int64  // hits
	never     bool   // waiting does not help
	ends      int64  // time at which the cost may be admitted
	resets    int64  // time at which the limit is fully available again
	until     int64  // time at which to query the store again
	asked     uint64 // value of Denials.forgets when the call was sent
}

// NewDenials returns a cache that is disabled until Believe(true). now is in microseconds; nil is the process's clock.
func NewDenials(now func() int64) *Denials {
	if now == nil {
		start := time.Now()
		now = func() int64 { return time.Since(start).Microseconds() }
	}
	return &Denials{now: now, seed: maphash.MakeSeed(), sets: make([]set, sets)}
}

// Answered returns the number of requests that were answered from the cache.
func (d *Denials) Answered() uint64 { return d.answered.Load() }

// Believe enables or disables the cache, and empties it. While it is enabled, Forget must be called for every refund.
func (d *Denials) Believe(yes bool) {
	d.Drop()
	d.believes.Store(yes)
}

// Drop forgets all denials, including those of calls in flight. It must be called when the rules change, because under
// another policy a counter may admit a cost before the denial ends.
func (d *Denials) Drop() { d.forget(&d.dropped) }

// Forget must be called after each refund to the counter. It also forgets denials of calls in flight.
func (d *Denials) Forget(key string) { d.forget(&d.set(key).forgotten) }

// forget marks all denials of calls sent before now as forgotten, in one set or in all sets.
func (d *Denials) forget(last *atomic.Uint64) {
	now := d.forgets.Add(1)
	for before := last.Load(); before < now && !last.CompareAndSwap(before, now); {
		before = last.Load()
	}
}

// Before implements take.Stage. It answers a call if each of its hits has a cached denial.
func (d *Denials) Before(c *take.Call) (answered bool) {
	if c.Caches = d.believes.Load(); !c.Caches {
		return false
	}
	c.Asked, c.Forgets = d.now(), d.forgets.Load()
	if !d.answer(c.Asked, c.Hits, c.Out) {
		return false
	}
	d.answered.Add(1)
	return true
}

// After implements take.Stage. It caches the denials of the store.
func (d *Denials) After(c *take.Call) {
	if !c.Caches {
		return
	}
	for i := range c.Hits {
		switch h := &c.Hits[i]; {
		case h.N < 0:
			d.Forget(h.Key) // even after an error, because the refund may have been counted
		case c.Err == nil && !c.Out[i].Allowed && h.Mode == limiter.Enforce && cacheable(h) && isOnlyHitOfKey(c.Hits, i):
			d.note(c.Asked, newDenial(h, &c.Out[i], c))
		}
	}
}

// newDenial returns the denial of hit h. Its times count from the sending of the call, which is before the store
// decided, so that the cached denial never outlasts the real one.
func newDenial(h *limiter.Hit, out *limiter.Decision, c *take.Call) *denial {
	cached := &denial{
		key: strings.Clone(h.Key), policy: h.Policy, store: limit.StoreName(h), need: need(h), remaining: out.Remaining,
		never:  out.RetryAfter == limiter.Never,
		ends:   c.Asked + out.RetryAfter.Microseconds(),
		resets: c.Asked + out.ResetAfter.Microseconds(),
		asked:  c.Forgets,
	}
	cached.until = min(cached.ends, c.Asked+maxAge.Microseconds())
	return cached
}

// answer decides the hits if each of them has a cached denial.
func (d *Denials) answer(now int64, hits []limiter.Hit, out []limiter.Decision) bool {
	for i := range hits {
		h := &hits[i]
		owes := h.ByItself && h.N > 0 && h.Policy.Params().ChargeDenied != limiter.ChargeNone // a denial must be charged
		if h.Mode != limiter.Enforce || h.N < 0 || owes && !d.Uncharged || !isOnlyHitOfKey(hits, i) {
			return false
		}
		cached := d.find(h, now)
		if cached == nil {
			return false
		}
		out[i] = limiter.Decision{
			Remaining:  cached.remaining,
			RetryAfter: limiter.Never,
			ResetAfter: time.Duration(max(0, cached.resets-now)) * time.Microsecond,
			Cached:     true,
		}
		if !cached.never {
			out[i].RetryAfter = time.Duration(cached.ends-now) * time.Microsecond
		}
	}
	return true
}

// mostHits bounds the cost of isOnlyHitOfKey for all hits of a request. Larger requests always go to the store.
const mostHits = 64

// need returns the cost that must fit for the hit to fit. For most limits, a peek fits only if one hit fits.
func need(h *limiter.Hit) int64 {
	if h.Policy.Core().PeeksAtLimit {
		return h.N
	}
	return max(h.N, 1)
}

// isOnlyHitOfKey reports whether no other hit has the key of hits[i]. Several hits of one key cost more together.
func isOnlyHitOfKey(hits []limiter.Hit, i int) bool {
	if len(hits) > mostHits {
		return false
	}
	for j := range hits {
		if j != i && hits[j].Key == hits[i].Key {
			return false
		}
	}
	return true
}

// cacheable reports whether only a refund can end the hit's denial early. Denials of the redis-cell module are not
// cached, because their times are up to 2 ms too long.
func cacheable(h *limiter.Hit) bool {
	return h.Policy.Core().Cacheable && !limit.UsesRedisCell(h)
}

func (d *Denials) set(key string) *set { return &d.sets[maphash.String(d.seed, key)%sets] }

func (d *Denials) find(h *limiter.Hit, now int64) *denial {
	s := d.set(h.Key)
	forgotten := max(s.forgotten.Load(), d.dropped.Load())
	for i := range s.slots {
		cached := s.slots[i].Load()
		if !cached.isValid(now, forgotten) || cached.need != need(h) || cached.key != h.Key {
			continue
		}
		if cached.store == limit.StoreName(h) && !limit.UsesRedisCell(h) &&
			(cached.policy == h.Policy || limit.Identity(cached.policy) == limit.Identity(h.Policy)) {
			return cached
		}
	}
	return nil
}

// isValid reports whether the denial has neither ended nor been forgotten since its call was sent.
func (cached *denial) isValid(now int64, forgotten uint64) bool {
	return cached != nil && cached.until > now && cached.asked >= forgotten
}

// note caches a denial in the slot of its key, else in one without a valid denial, else in one whose denial ends first.
func (d *Denials) note(now int64, denied *denial) {
	s := d.set(denied.key)
	forgotten := max(s.forgotten.Load(), d.dropped.Load())
	slot, first := 0, int64(math.MaxInt64)
	for i := range s.slots {
		cached := s.slots[i].Load()
		if cached != nil && cached.key == denied.key {
			slot = i
			break
		}
		ends := int64(0)
		if cached.isValid(now, forgotten) {
			ends = cached.until
		}
		if ends < first {
			slot, first = i, ends
		}
	}
	s.slots[slot].Store(denied)
}
