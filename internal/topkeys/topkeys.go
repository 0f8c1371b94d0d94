// Package topkeys knows the busiest and the most denied keys of each rule, of the last minute or two, in bounded memory: by a
// sketch (see summary), never by a map of everything.
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
	// Half is how long a sketch is filled. What is shown is the one that is being filled and the one before.
	Half = time.Minute

	// maxCounters bounds the counters of all rules together: 15 to 25 MB, 35 MB if keys are as long as they may be
	// (TestMemoryIsBounded). A key has up to four, for hits and for denials, in this half and in the one before.
	maxCounters = 100_000
	// ruleCost is what a rule takes of them for itself.
	ruleCost = 2
	// batch is how many occurrences a stripe collects before it counts them.
	batch = 64
)

// Options are the bounds of a Top.
type Options struct {
	// PerRule is how many keys are counted for each rule, busiest and most denied apart: 1 to MaxPerRule. A key with more
	// than one PerRule-th of a rule's hits is found for certain.
	PerRule int
	// HashValues shows values as # and the first 16 bytes of their SHA-256, as `hash_values` does in counters' names.
	HashValues bool
}

// Top counts keys. It is safe for concurrent use.
//
// A request does not touch the sketches, which all cores share. It notes its keys in a stripe, which is its core's as a rule,
// and every 64th key or so counts what the stripe has noted.
type Top struct {
	o        Options
	seed     maphash.Seed
	counters atomic.Int64  // free ones, of maxCounters
	missed   atomic.Uint64 // hits of rules for which there was no counter at all, in all

	stripes []stripe
	pool    sync.Pool // of *stripe, one of stripes: as a rule the one that this core had last
	next    atomic.Uint32

	mu    sync.RWMutex
	rules map[name]*rule
	since [2]time.Time // when this half began, and the one before
}

// name is a rule's: it outlives a reload.
type name struct{ domain, path string }

// rule is the sketches of one rule.
type rule struct {
	name

	mu   sync.Mutex
	gone bool    // is no longer in Top.rules
	half [2]half // this one and the one before
}

// half is what is counted in one half of the window.
type half struct{ hits, denied summary }

func (h *half) counters() int { return len(h.hits.byHash) + len(h.denied.byHash) }

// stripe is what some requests have noted. It keeps the memory of its notes and of their keys.
type stripe struct {
	mu    sync.Mutex
	notes []note
	keys  []byte

	_ [64]byte // the next stripe is another core's
}

// note is one key's part in a request.
type note struct {
	rule     *descriptors.Rule
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
	t.counters.Store(maxCounters)
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

// Watch implements decide.Watcher. A descriptor counts as its first limit's key, for what it costs; a look and what gives hits
// back count for nothing. It was denied if one of its own limits did not let it pass, also in shadow or quota mode.
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
			t.note(s, l.Rule, first.Key, uint64(first.N), denied)
		}
	}
	s.mu.Unlock()
	t.pool.Put(s)
}

// stripe is one to note in; put it back into pool.
func (t *Top) stripe() *stripe {
	if s, ok := t.pool.Get().(*stripe); ok {
		return s
	}
	return &t.stripes[int(t.next.Add(1))%len(t.stripes)]
}

// note is called with the stripe's lock held.
func (t *Top) note(s *stripe, r *descriptors.Rule, key string, hits uint64, denied bool) {
	from := len(s.keys)
	s.keys = append(s.keys, key...)
	s.notes = append(s.notes, note{r, from, len(s.keys), hits, denied})
	if len(s.notes) >= batch {
		t.count(s)
	}
}

// count moves what the stripe has noted into the sketches. The stripe's lock is held.
func (t *Top) count(s *stripe) {
	var last *descriptors.Rule
	var in *rule
	for i := range s.notes {
		n := &s.notes[i]
		if n.rule != last {
			last, in = n.rule, t.rule(n.rule)
		}
		if in == nil || !in.add(t, s.keys[n.from:n.to], n.hits, n.denied) {
			t.missed.Add(n.hits)
		}
		n.rule = nil
	}
	s.notes, s.keys = s.notes[:0], s.keys[:0]
}

// countAll brings the sketches up to date.
func (t *Top) countAll() {
	for i := range t.stripes {
		s := &t.stripes[i]
		s.mu.Lock()
		t.count(s)
		s.mu.Unlock()
	}
}

// rule finds a rule's sketches, or makes them. It is nil if there is no room for more.
func (t *Top) rule(of *descriptors.Rule) *rule {
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
	if t.counters.Add(-ruleCost) < 0 {
		t.counters.Add(ruleCost)
		return nil
	}
	n = name{strings.Clone(n.domain), strings.Clone(n.path)} // which outlives the rules
	r = &rule{name: n}
	t.rules[n] = r
	return r
}

// room gives a summary one more counter, if it may have one. The last quarter of all counters is for those that have few: a
// summary may have the smaller a part of PerRule, the less is free.
func (t *Top) room(kept int) bool {
	if kept >= t.o.PerRule || int64(kept)*maxCounters >= t.counters.Load()*4*int64(t.o.PerRule) {
		return false
	}
	if t.counters.Add(-1) < 0 {
		t.counters.Add(1)
		return false
	}
	return true
}

// add counts one note. It is false if the rule is gone.
func (r *rule) add(t *Top, key []byte, hits uint64, denied bool) bool {
	hash := maphash.Bytes(t.seed, key)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		return false
	}
	now := &r.half[0]
	now.hits.add(hash, key, hits, t.room)
	if denied {
		now.denied.add(hash, key, hits, t.room)
	}
	return true
}

// rotate begins a new half. What was counted in the one before the last is forgotten, and rules that were not asked since.
func (t *Top) rotate(now time.Time) {
	t.countAll()
	t.mu.Lock()
	t.since = [2]time.Time{now, t.since[0]}
	t.mu.Unlock()
	var idle []*rule
	for _, r := range t.all() {
		r.mu.Lock()
		t.counters.Add(int64(r.half[1].counters()))
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

// Keep forgets the keys of rules that are not in the set. Requests that are under way may still bring a rule back, until it is
// idle for as long as is shown.
func (t *Top) Keep(set *descriptors.Set) {
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

// all are the rules that have sketches.
func (t *Top) all() []*rule {
	t.mu.RLock()
	defer t.mu.RUnlock()
	all := make([]*rule, 0, len(t.rules))
	for _, r := range t.rules {
		all = append(all, r)
	}
	return all
}

// forget drops a rule's sketches if they are to be dropped when nobody else has them.
func (t *Top) forget(r *rule, really func() bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone || !really() {
		return
	}
	r.gone = true
	t.counters.Add(int64(ruleCost + r.half[0].counters() + r.half[1].counters()))
	r.half = [2]half{}
	delete(t.rules, r.name)
}
