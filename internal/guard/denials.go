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

// maxAge is how long a denial is believed without asking again: as long may a counter be denied that its store has
// lost without a lost connection.
const maxAge = 5 * time.Minute

// The denials are kept in sets of slots; a key belongs to one set. 131,072 in all, about 20 MB when full.
const (
	sets  = 1 << 14
	slots = 8
)

// Denials answers what the store has denied, until the denial ends, without asking the store: the same cost on the
// same counter cannot pass before, whatever else comes, unless something is refunded. So whoever hears of that,
// of any process, has to call Forget, and Believe(false) when it may have missed it.
//
// It answers requests whose hits are all cached as denied, of limits whose denials end at a known time (cacheable).
// They are not charged: what charge_denied: full, a fixed window's default, would add to a window that is full
// anyway is not added. A hit that is charged by itself (limiter.Hit.ByItself) is promised that charge: it goes to the
// store, unless Uncharged is set.
type Denials struct {
	// Uncharged also answers hits that are charged by themselves. Set it before the first call.
	Uncharged bool

	now func() int64 // microseconds

	seed     maphash.Seed
	sets     []set
	believes atomic.Bool
	forgets  atomic.Uint64 // how often something was forgotten
	dropped  atomic.Uint64 // which of these times was the last one that all was
	answered atomic.Uint64
}

// set is the denials of some keys.
type set struct {
	forgotten atomic.Uint64 // which of Denials.forgets was the last one of this set
	slots     [slots]atomic.Pointer[denial]
}

// denial is a decision of the store. It is immutable.
type denial struct {
	key       string
	policy    *limiter.Policy
	store     string // that denied it
	need      int64  // cost, hits
	remaining int64  // hits
	never     bool   // no wait lets it pass
	ends      int64  // when the cost may pass, microseconds
	resets    int64  // when the limit is fully available again, microseconds
	until     int64  // when to ask again, microseconds
	asked     uint64 // Denials.forgets when the store was asked
}

// NewDenials believes nothing until Believe(true). now is a monotonic clock in microseconds; nil is the process's.
func NewDenials(now func() int64) *Denials {
	if now == nil {
		start := time.Now()
		now = func() int64 { return time.Since(start).Microseconds() }
	}
	return &Denials{now: now, seed: maphash.MakeSeed(), sets: make([]set, sets)}
}

// Answered is how many requests were answered without the store.
func (d *Denials) Answered() uint64 { return d.answered.Load() }

// Believe says whether Forget is called for all that is refunded from now on. What was cached before is dropped.
func (d *Denials) Believe(yes bool) {
	d.Drop()
	d.believes.Store(yes)
}

// Drop forgets all denials, also those that are on their way: other policies rule the counters from now on, or did
// meanwhile, and what a policy's own requests can only push away another's may not.
func (d *Denials) Drop() { d.forget(&d.dropped) }

// Forget is called after something was refunded to the counter. It forgets the denials of the key's set, also those
// that are on their way.
func (d *Denials) Forget(key string) { d.forget(&d.set(key).forgotten) }

// forget notes that all denials which the store was asked for before are forgotten: of a set, or of all sets.
func (d *Denials) forget(last *atomic.Uint64) {
	now := d.forgets.Add(1)
	for before := last.Load(); before < now && !last.CompareAndSwap(before, now); {
		before = last.Load()
	}
}

// Before implements take.Stage. It answers a call whose hits are all cached as denied.
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

// After implements take.Stage. It caches what the store has denied.
func (d *Denials) After(c *take.Call) {
	if !c.Caches {
		return
	}
	for i := range c.Hits {
		switch h := &c.Hits[i]; {
		case h.N < 0:
			d.Forget(h.Key) // also after an error: it may have been refunded
		case c.Err == nil && !c.Out[i].Allowed && cacheable(h) && isOnlyHitOfKey(c.Hits, i):
			d.note(c.Asked, newDenial(h, &c.Out[i], c))
		}
	}
}

// newDenial is a decision of a call. The store made it later than the call was sent, so it does not end before what it
// says, counted from then.
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

// answer decides the hits if each of them is cached as denied.
func (d *Denials) answer(now int64, hits []limiter.Hit, out []limiter.Decision) bool {
	for i := range hits {
		h := &hits[i]
		owes := h.ByItself && h.N > 0 && h.Policy.Params().ChargeDenied != limiter.ChargeNone // and pays when it is denied
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

// mostHits bounds what looking for others of the same key costs: larger requests are always asked of the store.
const mostHits = 64

// need is the cost that must fit for the hit to fit: a look at most limits needs what one hit needs.
func need(h *limiter.Hit) int64 {
	if h.Policy.Core().LooksAtLimit {
		return h.N
	}
	return max(h.N, 1)
}

// isOnlyHitOfKey reports whether no other hit has the key of hits[i]: together they would cost more.
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

// cacheable reports whether the hit's denial holds until it ends, whatever else comes. The times of the redis-cell
// module do not: they are up to 2 ms too long.
func cacheable(h *limiter.Hit) bool {
	return h.Policy.Core().Cacheable && !limit.UsesRedisCell(h)
}

func (d *Denials) set(key string) *set { return &d.sets[maphash.String(d.seed, key)%sets] }

// find returns the denial that answers the hit, nil if there is none.
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

// isValid reports whether the denial holds: what was forgotten later may have been refunded since.
func (cached *denial) isValid(now int64, forgotten uint64) bool {
	return cached != nil && cached.until > now && cached.asked >= forgotten
}

// note remembers a denial: where the key's is already, else in place of one that is believed no more, else of
// the one that ends first.
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
