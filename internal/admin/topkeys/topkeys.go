// Package topkeys finds the busiest and the most denied keys of each rule in the last one to two minutes. Space-saving
// sketches (see sketch) bound its memory.
package topkeys

import (
	"context"
	"hash/maphash"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/flags"
	"github.com/weir-ratelimit/weir/internal/sleep"
)

var _ decide.Watcher = (*Top)(nil)

// Bounds.
const (
	// MaxPerRule is the maximum of Options.PerRule.
	MaxPerRule = 1000
	// Half is the time for which a sketch is filled. Keys returns the current sketch and the previous one.
	Half = time.Minute

	// maxCounters is the maximum number of counters over all rules: 15 to 25 MB, 35 MB with the longest keys
	// (TestMemoryIsBounded). A key has up to four counters: for hits and denials, in the current and in the previous half.
	maxCounters = 100_000
	// halfCost is the number of counters that a half's own memory counts as.
	halfCost = 2
	// batch is the number of notes that a stripe collects before it counts them.
	batch = 64
)

// Options are the bounds of a Top.
type Options struct {
	// PerRule is the number of busiest keys and of most denied keys per rule: 1 to MaxPerRule. A key with more than
	// 1/PerRule of a rule's hits is always found.
	PerRule int `name:"top-keys" env:"WEIR_TOP_KEYS" default:"100" help:"Number of keys to count per rule, for GET /top and weir top; 0 for none."`
}

// Check checks the flags.
func (o *Options) Check(e *flags.Errors) { flags.Between(e, "--top-keys", o.PerRule, 0, MaxPerRule) }

// Top counts keys. It is safe for concurrent use.
//
// Because all cores share the sketches, a request only notes its keys in a stripe, usually its core's own. About every
// 64th key moves the stripe's notes into the sketches.
type Top struct {
	o      Options
	seed   maphash.Seed
	free   atomic.Int64  // number of unused counters of maxCounters
	missed atomic.Uint64 // hits that no sketch counted: no counter was free, or the rule was removed or has no limit

	stripes []stripe
	pool    sync.Pool // pointers into stripes; Get usually returns the stripe that this core used last
	next    atomic.Uint32

	keeping sync.Mutex                   // held by Keep
	live    atomic.Pointer[[]liveRule]   // rules by the ID of their first limit
	since   atomic.Pointer[[2]time.Time] // when this half and the previous one began
}

// liveRule is an active rule, at the ID of its first limit.
type liveRule struct {
	of   *descriptors.Rule
	keys atomic.Pointer[rule] // nil until a request matches the rule
}

// rule has the sketches of one rule.
type rule struct {
	mu          sync.Mutex
	of          *descriptors.Rule // the rule in the active set
	now, before *half             // nil if there were no hits
}

// half has the keys of one half of the window.
type half struct{ hits, denied sketch }

// halves returns the rule's halves with hits. The caller must hold r.mu.
func (r *rule) halves() (all []*half) {
	for _, h := range []*half{r.now, r.before} {
		if h != nil {
			all = append(all, h)
		}
	}
	return all
}

// release frees the counters of a half.
func (t *Top) release(h *half) {
	if h != nil {
		t.free.Add(halfCost + int64(h.hits.used) + int64(h.denied.used))
	}
}

// stripe collects notes. It reuses the memory of its notes and of their keys.
type stripe struct {
	mu    sync.Mutex
	notes []note
	keys  []byte

	_ [64]byte // separates the next stripe, which another core uses, from this cache line
}

// note is one key of a request.
type note struct {
	rule     *descriptors.Rule
	id       int // ID of the limit
	from, to int // range of the key in stripe.keys
	hits     uint64
	denied   bool
}

// New returns a Top without rules.
func New(o Options) *Top {
	t := &Top{o: o, seed: maphash.MakeSeed(), stripes: make([]stripe, runtime.GOMAXPROCS(0))}
	t.free.Store(maxCounters)
	t.live.Store(&[]liveRule{})
	t.since.Store(&[2]time.Time{time.Now(), time.Now()})
	return t
}

// Run begins a new half every minute until ctx is done.
func (t *Top) Run(ctx context.Context) {
	for sleep.For(ctx, Half) == nil {
		t.rotate(time.Now())
	}
}

// Watch implements decide.Watcher. A descriptor's positive cost counts under the key of its first limit. It counts as
// denied if one of its limits does not fit, also in shadow or quota mode.
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

// Add counts requests that Envoys decided, for one limit. denied also applies to denials in shadow mode.
func (t *Top) Add(l *descriptors.Limit, key string, requests uint64, denied bool) {
	s := t.stripe()
	s.mu.Lock()
	t.note(s, l, key, requests, denied)
	s.mu.Unlock()
	t.pool.Put(s)
}

// stripe returns a stripe. The caller must put it back into t.pool.
func (t *Top) stripe() *stripe {
	if s, ok := t.pool.Get().(*stripe); ok {
		return s
	}
	return &t.stripes[int(t.next.Add(1))%len(t.stripes)]
}

// note adds a note to the stripe. The caller must hold s.mu.
func (t *Top) note(s *stripe, l *descriptors.Limit, key string, hits uint64, denied bool) {
	from := len(s.keys)
	s.keys = append(s.keys, key...)
	s.notes = append(s.notes, note{l.Rule, l.ID, from, len(s.keys), hits, denied})
	if len(s.notes) >= batch {
		t.count(s)
	}
}

// count moves the stripe's notes into the sketches. The caller must hold s.mu.
//
// With many rules, the rules and sketches are not in the CPU's caches. Each step is a separate loop so that the CPU
// loads several of them at once.
func (t *Top) count(s *stripe) {
	var rules [batch]*rule
	live := *t.live.Load()
	for i := range s.notes {
		rules[i] = t.keysOf(live, &s.notes[i])
	}
	for i := range s.notes {
		n := &s.notes[i]
		if rules[i] == nil || !rules[i].add(t, s.keys[n.from:n.to], n.hits, n.denied) {
			t.missed.Add(n.hits)
		}
	}
	clear(s.notes) // so that rules can be collected after a reload
	s.notes, s.keys = s.notes[:0], s.keys[:0]
}

// keysOf returns the sketches of the note's rule, or nil if the rule is not active or there is no room. It rarely reads
// the rule itself, to save a cache miss.
func (t *Top) keysOf(live []liveRule, n *note) *rule {
	id := n.id
	if isLive := id >= 0 && id < len(live) && live[id].of == n.rule; !isLive {
		if len(n.rule.Limits) == 0 {
			return nil // the limit came with the request
		}
		id = n.rule.Limits[0].ID
	}
	if id >= len(live) || live[id].of != n.rule {
		return nil // another set matched the request
	}
	keys := &live[id].keys
	if keys.Load() == nil && t.free.Load() >= halfCost {
		keys.CompareAndSwap(nil, &rule{of: n.rule})
	}
	return keys.Load()
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

// takeCounter takes a free counter for a sketch with has counters, and reports whether the sketch may have it. If less
// than a quarter of all counters is free, a sketch gets less than PerRule, so that new rules get some counters.
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

// add counts one note. It returns false if there is no room.
func (r *rule) add(t *Top, key []byte, hits uint64, denied bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now == nil {
		if t.free.Add(-halfCost) < 0 {
			t.free.Add(halfCost)
			return false
		}
		r.now = &half{}
	}
	hash := maphash.Bytes(t.seed, key)
	r.now.hits.add(hash, key, hits, t.takeCounter)
	if denied {
		r.now.denied.add(hash, key, hits, t.takeCounter)
	}
	return true
}

// rotate begins a new half, and drops the half before the previous one.
func (t *Top) rotate(now time.Time) {
	t.countAll()
	t.since.Store(&[2]time.Time{now, t.since.Load()[0]})
	for _, r := range rulesOf(*t.live.Load()) {
		r.mu.Lock()
		t.release(r.before)
		r.now, r.before = nil, r.now
		r.mu.Unlock()
	}
}

// Keep must be called when the set becomes active. It drops the keys of rules that are not in the set. Requests in
// flight that the previous set has matched count as missed.
func (t *Top) Keep(set *descriptors.Set) {
	t.keeping.Lock()
	defer t.keeping.Unlock()
	t.countAll()
	old, live := *t.live.Load(), make([]liveRule, len(set.Limits()))
	before := map[[2]string]*rule{}
	for _, r := range rulesOf(old) {
		before[[2]string{r.of.Domain, r.of.Path}] = r
	}
	for i, l := range set.Limits() {
		if l.Rule.Limits[0] != l {
			continue
		}
		live[i].of = l.Rule
		if r := before[[2]string{l.Rule.Domain, l.Rule.Path}]; r != nil {
			live[i].keys.Store(r)
			r.mu.Lock()
			r.of = l.Rule
			r.mu.Unlock()
		}
	}
	t.live.Store(&live)
	t.countAll() // afterwards no count with the previous set is running
	for _, r := range rulesOf(old) {
		if id := r.of.Limits[0].ID; id >= len(live) || live[id].keys.Load() != r {
			r.mu.Lock()
			t.release(r.now)
			t.release(r.before)
			r.now, r.before = nil, nil
			r.mu.Unlock()
		}
	}
}

// rulesOf returns the sketches of active rules that requests have matched.
func rulesOf(live []liveRule) (all []*rule) {
	for i := range live {
		if r := live[i].keys.Load(); r != nil {
			all = append(all, r)
		}
	}
	return all
}
