// Package topkeys finds the busiest and the most denied keys of each rule in the last minute or two. Its memory is
// bounded: it keeps space-saving sketches (see summary), never a map of all keys.
package topkeys

import (
	"context"
	"fmt"
	"hash/maphash"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

var _ decide.Watcher = (*Top)(nil)

// Bounds.
const (
	// MaxPerRule is the largest Options.PerRule.
	MaxPerRule = 1000
	// Half is how long a sketch is filled. Keys returns the sketch that is being filled and the one before.
	Half = time.Minute

	// maxCounters bounds the counters of all rules together: 15 to 25 MB, 35 MB with the longest keys
	// (TestMemoryIsBounded). A key has up to four: for hits and for denials, in this half and in the one before.
	maxCounters = 100_000
	// ruleCost is how many counters a rule's own memory counts as.
	ruleCost = 2
	// batch is how many notes a stripe collects before it counts them.
	batch = 64
)

// Options are the bounds of a Top.
type Options struct {
	// PerRule is how many busiest and how many most denied keys each rule counts: 1 to MaxPerRule. A key with more than
	// 1/PerRule of a rule's hits is always found.
	PerRule int
	// HashValues shows a value as # and the first 16 bytes of its SHA-256, as `hash_values` does in counters' names.
	HashValues bool
}

// Top counts keys. It is safe for concurrent use.
//
// A request does not touch the sketches, which all cores share. It notes its keys in a stripe, usually its core's own.
// About every 64th key moves the stripe's notes into the sketches.
type Top struct {
	o      Options
	seed   maphash.Seed
	free   atomic.Int64  // counters, of maxCounters
	missed atomic.Uint64 // hits that no sketch counted, since the rule had no counter

	stripes []stripe
	pool    sync.Pool // of *stripe, each one of stripes: usually the one that this core used last
	next    atomic.Uint32

	live atomic.Pointer[[]slot] // by Limit.ID

	mu    sync.RWMutex
	rules map[name]*rule
	since [2]time.Time // when this half and the one before began
}

// slot finds the sketches of a live limit's rule without a search. They are nil until a request asks the rule.
type slot struct {
	rule     *descriptors.Rule // tells whether a limit with this ID is of the live set
	sketches atomic.Pointer[rule]
}

// name names a rule. It outlives a reload.
type name struct{ domain, path string }

// rule is the sketches of one rule.
type rule struct {
	name

	mu   sync.Mutex
	gone atomic.Bool // no longer in Top.rules
	half [2]half     // this one and the one before
}

// half is the keys of one half of the window.
type half struct{ hits, denied summary }

func (h *half) counters() int { return len(h.hits.byHash) + len(h.denied.byHash) }

// stripe collects notes. It reuses the memory of its notes and of their keys.
type stripe struct {
	mu    sync.Mutex
	notes []note
	keys  []byte

	_ [64]byte // keeps the next stripe, which another core uses, off this cache line
}

// note is one key of a request.
type note struct {
	limit    *descriptors.Limit
	from, to int // of the key, in stripe.keys
	hits     uint64
	denied   bool
}

// New checks the options.
func New(o Options) (*Top, error) {
	if o.PerRule < 1 || o.PerRule > MaxPerRule {
		return nil, fmt.Errorf("topkeys: Options.PerRule: must be between 1 and %d, got %d", MaxPerRule, o.PerRule)
	}
	t := &Top{
		o: o, seed: maphash.MakeSeed(), stripes: make([]stripe, runtime.GOMAXPROCS(0)), rules: map[name]*rule{},
		since: [2]time.Time{time.Now(), time.Now()},
	}
	t.free.Store(maxCounters)
	t.live.Store(&[]slot{})
	return t, nil
}

// Run begins a new half each minute, until ctx is done.
func (t *Top) Run(ctx context.Context) {
	tick := time.NewTicker(Half)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			t.rotate(now)
		}
	}
}

// Watch implements decide.Watcher. A descriptor counts its cost under its first limit's key. Costs of 0 and below do
// not count. The descriptor counts as denied if one of its own limits does not fit, also in shadow or quota mode.
func (t *Top) Watch(_ context.Context, v *decide.Verdict) {
	if len(v.Hits) == 0 {
		return
	}
	s := t.stripe()
	s.mu.Lock()
	for i := 0; i < len(v.Hits); {
		l, first, denied := v.Limits[i], &v.Hits[i], v.Outcome(i).Unfit()
		for i++; i < len(v.Hits) && v.Hits[i].Group == first.Group; i++ {
			denied = denied || v.Outcome(i).Unfit()
		}
		if first.N > 0 {
			t.note(s, l, first.Key, uint64(first.N), denied)
		}
	}
	s.mu.Unlock()
	t.pool.Put(s)
}

// stripe returns a stripe. Put it back into pool.
func (t *Top) stripe() *stripe {
	if s, ok := t.pool.Get().(*stripe); ok {
		return s
	}
	return &t.stripes[int(t.next.Add(1))%len(t.stripes)]
}

// note adds a note to the stripe, which must be locked.
func (t *Top) note(s *stripe, l *descriptors.Limit, key string, hits uint64, denied bool) {
	from := len(s.keys)
	s.keys = append(s.keys, key...)
	s.notes = append(s.notes, note{l, from, len(s.keys), hits, denied})
	if len(s.notes) >= batch {
		t.count(s)
	}
}

// count moves the stripe's notes into the sketches. The stripe must be locked.
func (t *Top) count(s *stripe) {
	for i := range s.notes {
		n := &s.notes[i]
		if r := t.rule(n.limit); r == nil || !r.add(t, s.keys[n.from:n.to], n.hits, n.denied) {
			t.missed.Add(n.hits)
		}
		n.limit = nil
	}
	s.notes, s.keys = s.notes[:0], s.keys[:0]
}

// countAll moves the notes of all stripes into the sketches.
func (t *Top) countAll() {
	for i := range t.stripes {
		s := &t.stripes[i]
		s.mu.Lock()
		t.count(s)
		s.mu.Unlock()
	}
}

// rule returns the sketches of the limit's rule. It makes them if there is room, else it returns nil.
func (t *Top) rule(l *descriptors.Limit) *rule {
	live := *t.live.Load()
	if l.ID < 0 || l.ID >= len(live) || live[l.ID].rule != l.Rule {
		return t.byName(l.Rule)
	}
	s := &live[l.ID].sketches
	r := s.Load()
	if r == nil || r.gone.Load() {
		r = t.byName(l.Rule)
		s.Store(r)
	}
	return r
}

func (t *Top) byName(of *descriptors.Rule) *rule {
	n := name{of.Domain, of.Path}
	t.mu.RLock()
	r := t.rules[n]
	t.mu.RUnlock()
	if r != nil {
		return r
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.rules[n]; r != nil {
		return r
	}
	if t.free.Add(-ruleCost) < 0 {
		t.free.Add(ruleCost)
		return nil
	}
	n = name{strings.Clone(n.domain), strings.Clone(n.path)} // which outlives the rules
	r = &rule{name: n}
	t.rules[n] = r
	return r
}

// takeCounter takes a free counter for a summary that has some already, and reports whether the summary may have it.
// When less than a quarter of all counters is free, a summary may have a smaller share of PerRule, so that new rules
// get some.
func (t *Top) takeCounter(has int) bool {
	if has >= t.o.PerRule || int64(has)*maxCounters >= t.free.Load()*4*int64(t.o.PerRule) {
		return false
	}
	if t.free.Add(-1) < 0 {
		t.free.Add(1)
		return false
	}
	return true
}

// add counts one note. It returns false if the rule is gone.
func (r *rule) add(t *Top, key []byte, hits uint64, denied bool) bool {
	hash := maphash.Bytes(t.seed, key)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone.Load() {
		return false
	}
	now := &r.half[0]
	now.hits.add(hash, key, hits, t.takeCounter)
	if denied {
		now.denied.add(hash, key, hits, t.takeCounter)
	}
	return true
}

// rotate begins a new half. It drops the half before the last, and rules that no request has asked since.
func (t *Top) rotate(now time.Time) {
	t.countAll()
	t.mu.Lock()
	t.since = [2]time.Time{now, t.since[0]}
	t.mu.Unlock()
	var idle []*rule
	for _, r := range t.all() {
		r.mu.Lock()
		t.free.Add(int64(r.half[1].counters()))
		r.half = [2]half{{}, r.half[0]}
		if r.half[1].hits.total == 0 {
			idle = append(idle, r)
		}
		r.mu.Unlock()
	}
	for _, r := range idle {
		t.forget(r, func() bool { return r.half[0].hits.total == 0 && r.half[1].hits.total == 0 })
	}
}

// Keep is called when the set goes live. It drops the keys of rules that are not in the set. A request under way may
// bring such a rule back; rotate drops it then.
func (t *Top) Keep(set *descriptors.Set) {
	live := make([]slot, len(set.Limits()))
	for i, l := range set.Limits() {
		live[i].rule = l.Rule
	}
	t.live.Store(&live)
	t.countAll()
	gone := map[name]*rule{}
	for _, r := range t.all() {
		gone[r.name] = r
	}
	for _, d := range set.Domains() {
		for _, r := range d.Rules() {
			delete(gone, name{r.Domain, r.Path})
		}
	}
	for _, r := range gone {
		t.forget(r, func() bool { return true })
	}
}

// all returns the rules that have sketches.
func (t *Top) all() []*rule {
	t.mu.RLock()
	defer t.mu.RUnlock()
	all := make([]*rule, 0, len(t.rules))
	for _, r := range t.rules {
		all = append(all, r)
	}
	return all
}

// forget drops a rule's sketches if isIdle still holds while they are locked.
func (t *Top) forget(r *rule, isIdle func() bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone.Load() || !isIdle() {
		return
	}
	r.gone.Store(true)
	t.free.Add(int64(ruleCost + r.half[0].counters() + r.half[1].counters()))
	r.half = [2]half{}
	delete(t.rules, r.name)
}
