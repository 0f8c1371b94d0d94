// Package topkeys finds the busiest and the most denied keys of each rule in the last minute or two. Its memory is
// bounded: it keeps space-saving sketches (see sketch), never a map of all keys.
package topkeys

import (
	"context"
	"hash/maphash"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/flags"
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
	PerRule int `name:"top-keys" env:"WEIR_TOP_KEYS" default:"100" help:"How many keys to count for each rule, for the busiest and the most denied (GET /top, weir top); 0 for none."`
}

// Check checks the flags.
func (o *Options) Check(e *flags.Errors) { flags.Between(e, "--top-keys", o.PerRule, 0, MaxPerRule) }

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

	live atomic.Pointer[[]liveRule] // by Limit.ID

	mu    sync.RWMutex
	rules map[name]*rule
	since [2]time.Time // when this half and the one before began
}

// liveRule has the sketches of a live limit's rule, so that a hit finds them without a search.
type liveRule struct {
	rule *descriptors.Rule // tells whether a limit with this ID is of the live set
	// sketches is nil until a request asks the rule. It is refused if there was no room.
	sketches atomic.Pointer[rule]
}

// refused stands for a rule without sketches.
var refused = &rule{}

// name names a rule. It outlives a reload.
type name struct{ domain, path string }

// rule is the sketches of one rule. A hit of a key that has a counter needs the first 64 bytes, and a slot.
type rule struct {
	mu     sync.Mutex
	gone   atomic.Bool // no longer in Top.rules
	now    half
	before *half // nil: no hits

	name
}

// half is the keys of one half of the window.
type half struct{ hits, denied sketch }

func (h *half) counters() int { return int(h.hits.used) + int(h.denied.used) }

// halves returns what the window has of the rule, which must be locked.
func (r *rule) halves() []*half {
	if r.before == nil {
		return []*half{&r.now}
	}
	return []*half{&r.now, r.before}
}

// counters returns the number of the rule's counters. The rule must be locked.
func (r *rule) counters() (n int) {
	for _, h := range r.halves() {
		n += h.counters()
	}
	return n
}

// stripe collects notes. It reuses the memory of its notes and of their keys.
type stripe struct {
	mu    sync.Mutex
	notes []note
	keys  []byte

	_ [64]byte // keeps the next stripe, which another core uses, off this cache line
}

// note is one key of a request.
type note struct {
	live     *liveRule // of the limit; nil if it is of no live set
	rule     *descriptors.Rule
	from, to int // of the key, in stripe.keys
	hits     uint64
	denied   bool
}

// New checks the options.
func New(o Options) *Top {
	t := &Top{
		o: o, seed: maphash.MakeSeed(), stripes: make([]stripe, runtime.GOMAXPROCS(0)), rules: map[name]*rule{},
		since: [2]time.Time{time.Now(), time.Now()},
	}
	t.free.Store(maxCounters)
	t.live.Store(&[]liveRule{})
	return t
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

// Add counts requests that Envoys decided: those of one limit, and whether they were denied, or would have been but for
// shadow mode.
func (t *Top) Add(l *descriptors.Limit, key string, requests uint64, denied bool) {
	s := t.stripe()
	s.mu.Lock()
	t.note(s, l, key, requests, denied)
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
	var p *liveRule
	if live := *t.live.Load(); l.ID >= 0 && l.ID < len(live) {
		p = &live[l.ID]
	}
	from := len(s.keys)
	s.keys = append(s.keys, key...)
	s.notes = append(s.notes, note{p, l.Rule, from, len(s.keys), hits, denied})
	if len(s.notes) >= batch {
		t.count(s)
	}
}

// count moves the stripe's notes into the sketches. The stripe must be locked.
//
// With many rules, live rules and sketches are in none of the CPU's caches. So each step is a loop of its own: the CPU
// then loads several of them at once.
func (t *Top) count(s *stripe) {
	var rules [batch]*rule
	for i := range s.notes {
		if n := &s.notes[i]; n.live != nil && n.live.rule == n.rule {
			rules[i] = n.live.sketches.Load()
		}
	}
	for i := range s.notes {
		if rules[i] == nil || rules[i].gone.Load() {
			rules[i] = t.find(&s.notes[i])
		}
	}
	var missed uint64
	for i := range s.notes {
		n := &s.notes[i]
		if !rules[i].add(t, s.keys[n.from:n.to], n.hits, n.denied) {
			missed = sum(missed, n.hits)
		}
	}
	if missed > 0 {
		t.missed.Add(missed)
	}
	clear(s.notes) // so that rules can be collected after a reload
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

// find returns the sketches of the note's rule by its name, and leaves them in its place.
func (t *Top) find(n *note) *rule {
	r := t.byName(n.rule)
	if n.live != nil && n.live.rule == n.rule {
		n.live.sketches.Store(r)
	}
	return r
}

// byName returns the rule's sketches. It makes them if there is room, else it returns refused.
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
		return refused
	}
	n = name{strings.Clone(n.domain), strings.Clone(n.path)} // which outlives the rules
	r = &rule{name: n}
	t.rules[n] = r
	return r
}

// takeCounter takes a free counter for a sketch that has some already, and reports whether the sketch may have it.
// When less than a quarter of all counters is free, a sketch may have a smaller share of PerRule, so that new rules
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

// add counts one note. It returns false if the rule is gone, or refused.
func (r *rule) add(t *Top, key []byte, hits uint64, denied bool) bool {
	if r == refused {
		return false
	}
	hash := maphash.Bytes(t.seed, key)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone.Load() {
		return false
	}
	r.now.hits.add(hash, key, hits, t.takeCounter)
	if denied {
		r.now.denied.add(hash, key, hits, t.takeCounter)
	}
	return true
}

// rotate begins a new half. It drops the half before the last, and rules that no request has asked since.
func (t *Top) rotate(now time.Time) {
	t.countAll()
	t.mu.Lock()
	t.since = [2]time.Time{now, t.since[0]}
	t.mu.Unlock()
	for _, r := range t.all() {
		r.mu.Lock()
		if r.before != nil {
			t.free.Add(int64(r.before.counters()))
			r.before = nil
		}
		isIdle := r.now.hits.isEmpty()
		if !isIdle {
			before := r.now
			r.now, r.before = half{}, &before
		}
		r.mu.Unlock()
		if isIdle {
			t.forget(r, func() bool { return r.now.hits.isEmpty() && r.before == nil })
		}
	}
	t.retryRefused()
}

// retryRefused lets rules for which there was no room ask again.
func (t *Top) retryRefused() {
	live := *t.live.Load()
	for i := range live {
		if s := &live[i].sketches; s.Load() == refused {
			s.Store(nil)
		}
	}
}

// Prepare drops, once the next rules are in force, the keys of all other rules.
func (t *Top) Prepare(next *descriptors.Set) (commit func()) { return func() { t.Keep(next) } }

// Keep is called when the set goes live. It drops the keys of rules that are not in the set. A request under way may
// bring such a rule back; rotate drops it then.
func (t *Top) Keep(set *descriptors.Set) {
	live := make([]liveRule, len(set.Limits()))
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
	t.retryRefused()
}

// all returns the rules that have sketches.
func (t *Top) all() []*rule {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Values(t.rules))
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
	t.free.Add(int64(ruleCost + r.counters()))
	r.now, r.before = half{}, nil
	delete(t.rules, r.name)
}
