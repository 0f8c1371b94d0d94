package guard

import (
	"context"
	"hash/maphash"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

var _ limiter.Store = (*Denials)(nil)

// maxAge is how long a denial is believed without asking again: as long may a counter be denied that its store has
// lost without a lost connection.
const maxAge = 5 * time.Minute

// The denials are kept in sets of slots; a key belongs to one set. 131,072 in all, about 20 MB when full.
const (
	sets  = 1 << 14
	slots = 8
)

// Denials answers what the store has denied, until the denial ends, without asking the store: the same cost on the
// same counter cannot pass before, whatever else comes, unless something is given back. So whoever hears of that,
// of any process, has to call Forget, and Believe(false) when it may have missed it.
//
// It answers requests whose hits are all cached as denied, of limits whose denials end at a known time (cacheable).
// They are not charged: what charge_denied: full, a fixed window's default, would add to a window that is full
// anyway is not added. A hit that is charged by itself (limiter.Hit.ByItself) is promised that charge: it goes to the
// store.
type Denials struct {
	store limiter.Store
	now   func() int64 // microseconds

	seed     maphash.Seed
	sets     []set
	era      atomic.Uint64 // of what is believed; an odd one believes nothing
	answered atomic.Uint64
}

// set is the denials of some keys.
type set struct {
	forgets atomic.Uint64 // how often all of them were forgotten
	slots   [slots]atomic.Pointer[denial]
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
	era       uint64
	forgets   uint64 // of its set, when the store was asked: with another number it may be older than what was given back
}

// NewDenials stands before store. It believes nothing until Believe(true). now is a monotonic clock in microseconds;
// nil is the process's.
func NewDenials(store limiter.Store, now func() int64) *Denials {
	if now == nil {
		start := time.Now()
		now = func() int64 { return time.Since(start).Microseconds() }
	}
	d := &Denials{store: store, now: now, seed: maphash.MakeSeed(), sets: make([]set, sets)}
	d.era.Store(1)
	return d
}

// Answered is how many requests were answered without the store.
func (d *Denials) Answered() uint64 { return d.answered.Load() }

// Believe says whether Forget is called for all that is given back from now on. What was cached before is dropped.
func (d *Denials) Believe(yes bool) {
	for {
		era := d.era.Load()
		next := era + 1
		if odd := next%2 == 1; odd == yes {
			next++
		}
		if d.era.CompareAndSwap(era, next) {
			return
		}
	}
}

// Drop forgets all denials, also those that are on their way: other policies rule the counters from now on, or did
// meanwhile, and what a policy's own requests can only push away another's may not.
func (d *Denials) Drop() { d.era.Add(2) }

// Known is what a hit that is enforced would be answered without the store; ok is false if the store would be asked.
func (d *Denials) Known(h limiter.Hit) (cached limiter.Decision, ok bool) {
	now, era := d.now(), d.era.Load()
	if era%2 == 1 {
		return limiter.Decision{}, false
	}
	hits, out := [1]limiter.Hit{h}, [1]limiter.Decision{}
	ok = d.answer(now, era, hits[:], out[:])
	return out[0], ok
}

// Forget is called after something was given back to the counter. It forgets the denials of the key's set, also those
// that are on their way.
func (d *Denials) Forget(key string) { d.set(key).forgets.Add(1) }

// Take implements limiter.Store.
func (d *Denials) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	now, era := d.now(), d.era.Load()
	if era%2 == 1 {
		return d.store.Take(ctx, hits, out)
	}
	if d.answer(now, era, hits, out) {
		d.answered.Add(1)
		return nil
	}
	var few [8]uint64
	forgets := d.forgetsOf(hits, few[:0])
	err := d.store.Take(ctx, hits, out)
	d.learn(now, era, forgets, hits, out, err)
	return err
}

// forgetsOf appends how often the set of each hit was forgotten.
func (d *Denials) forgetsOf(hits []limiter.Hit, to []uint64) []uint64 {
	for i := range hits {
		to = append(to, d.set(hits[i].Key).forgets.Load())
	}
	return to
}

// learn caches what the store has denied that was asked at now, in an era and with the sets forgotten so often.
func (d *Denials) learn(
	now int64, era uint64, forgets []uint64, hits []limiter.Hit, out []limiter.Decision, err error,
) {
	for i := range hits {
		switch h := &hits[i]; {
		case h.N < 0:
			d.Forget(h.Key) // also after an error: it may have been given back
		case err == nil && !out[i].Allowed && cacheable(h) && isOnlyHitOfKey(hits, i):
			d.note(now, newDenial(h, &out[i], now, era, forgets[i]))
		}
	}
}

// newDenial is a decision on a request that was sent at now. The store made it later, so it does not end before what
// it says, counted from now.
func newDenial(h *limiter.Hit, out *limiter.Decision, now int64, era, forgets uint64) *denial {
	cached := &denial{
		key: strings.Clone(h.Key), policy: h.Policy, store: StoreName(h), need: need(h), remaining: out.Remaining,
		never:  out.RetryAfter == limiter.Never,
		ends:   now + out.RetryAfter.Microseconds(),
		resets: now + out.ResetAfter.Microseconds(),
		era:    era, forgets: forgets,
	}
	cached.until = min(cached.ends, now+maxAge.Microseconds())
	return cached
}

// answer decides the request if each of its hits is cached as denied.
func (d *Denials) answer(now int64, era uint64, hits []limiter.Hit, out []limiter.Decision) bool {
	for i := range hits {
		h := &hits[i]
		owes := h.ByItself && h.N > 0 && h.Policy.ChargeDenied() != limiter.ChargeNone // and pays when it is denied
		if h.Mode != limiter.Enforce || h.N < 0 || owes || !isOnlyHitOfKey(hits, i) {
			return false
		}
		cached := d.find(h, now, era)
		if cached == nil {
			return false
		}
		out[i] = limiter.Decision{
			Remaining:  cached.remaining,
			RetryAfter: limiter.Never,
			ResetAfter: time.Duration(max(0, cached.resets-now)) * time.Microsecond,
			Known:      true,
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
	if h.Policy.LooksAtLimit() {
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
	return h.Policy.CanCacheDenial() && !usesRedisCell(h)
}

func (d *Denials) set(key string) *set { return &d.sets[maphash.String(d.seed, key)%sets] }

// find returns the denial that answers the hit, nil if there is none.
func (d *Denials) find(h *limiter.Hit, now int64, era uint64) *denial {
	s := d.set(h.Key)
	forgets := s.forgets.Load()
	for i := range s.slots {
		cached := s.slots[i].Load()
		if !cached.isValid(now, era, forgets) || cached.need != need(h) || cached.key != h.Key {
			continue
		}
		if cached.store == StoreName(h) && !usesRedisCell(h) &&
			(cached.policy == h.Policy || cached.policy.Identity() == h.Policy.Identity()) {
			return cached
		}
	}
	return nil
}

func (cached *denial) isValid(now int64, era, forgets uint64) bool {
	return cached != nil && cached.until > now && cached.era == era && cached.forgets == forgets
}

// note remembers a denial: where the key's is already, else in place of one that is believed no more, else of
// the one that ends first.
func (d *Denials) note(now int64, denied *denial) {
	s := d.set(denied.key)
	slot, first := 0, int64(math.MaxInt64)
	for i := range s.slots {
		cached := s.slots[i].Load()
		if cached != nil && cached.key == denied.key {
			slot = i
			break
		}
		ends := int64(0)
		if cached.isValid(now, denied.era, denied.forgets) {
			ends = cached.until
		}
		if ends < first {
			slot, first = i, ends
		}
	}
	s.slots[slot].Store(denied)
}
