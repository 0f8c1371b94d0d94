package memstore

import (
	"math"
	"math/bits"
	"slices"

	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// fingerprint identifies a key by two hashes whose seeds only this process knows, so that clients cannot choose keys
// that collide. Two of n keys share a fingerprint with a probability of about n^2/2^129: 1 in 4*10^25 for 4,000,000
// keys.
type fingerprint struct{ hi, lo uint64 }

// state is the stored state of a counter.
type state interface {
	// weight returns the approximate size of the counter, in bytes.
	weight() int
}

// pair is a state of two integers. It has no pointer, so the garbage collector does not scan it.
type pair struct{ a, b int64 }

// keyBytes is the approximate size of a counter of two integers, in bytes: a slot of 40 bytes at a load of 64 to 80 %.
const keyBytes = 64

func (pair) weight() int { return keyBytes }

// list is a state with a list.
type list struct {
	storekit.State
	room int32             // capacity of List's array, in integers, including those before List's start
	of   limiter.Algorithm // algorithm of the state, which no other algorithm can read
}

func (l list) weight() int { return 2*keyBytes + 8*int(l.room) }

// follow returns the list to store after l changed to next. A log drops its oldest hits by moving its start forward,
// which frees no memory, so follow copies a log that uses little of its array.
func (l list) follow(p *limiter.Policy, next storekit.State) list {
	n := list{State: next, room: roomOf(next.List), of: p.Algorithm()}
	if sameArray(l.List, next.List) {
		n.room = l.room
	}
	if int(n.room) > 4*len(next.List) && n.room > 32 {
		n.List = slices.Clone(next.List)
		n.room = roomOf(n.List)
	}
	return n
}

func roomOf(list []int64) int32 { return int32(min(cap(list), math.MaxInt32)) }

// sameArray reports whether two slices end at the same element of the same array.
func sameArray(a, b []int64) bool {
	return cap(a) > 0 && cap(b) > 0 && &a[:cap(a)][cap(a)-1] == &b[:cap(b)][cap(b)-1]
}

// mark is the time when a counter expires, in microseconds since the Unix epoch times four, plus isLimiting and isKept.
// The mark of an empty slot is 0.
type mark int64

const (
	isLimiting mark = 1 // the counter has denied a request, or has nothing left after several hits
	isKept     mark = 2 // the counter is limiting, and is not evicted: see table.keep
	markBits        = 2
)

func newMark(expires int64, limiting bool) mark {
	m := mark(expires << markBits)
	if limiting {
		m |= isLimiting
	}
	return m
}

func (m mark) expires() int64 { return int64(m >> markBits) }

// rank orders counters for eviction: counters that are not kept come first, and among these the first to expire.
func (m mark) rank() mark { return m + m&isKept<<60 }

// slot is one counter of a table.
type slot[S state] struct {
	id    fingerprint
	mark  mark
	state S
}

// table is a hash table with open addressing and linear probing. Unlike a map, it can be swept and evicted from a few
// slots at a time. It grows by a quarter, so that its load is 64 to 80 %, and a counter of two integers takes 50 to 63
// bytes. A slot's home increases with its fingerprint, so that a resize copies from front to back.
type table[S state] struct {
	slots  []slot[S]
	live   int // number of counters
	weight int // total weight of the counters, bytes
	kept   int // total weight of the counters that are kept, bytes
	hand   int // the last slot that an eviction examined
}

// smallest is the number of slots of the smallest table.
const smallest = 8

func (t *table[S]) home(id fingerprint) int {
	h, _ := bits.Mul64(id.hi, uint64(len(t.slots)))
	return int(h) //nolint:gosec // below len(t.slots)
}

func (t *table[S]) after(i int) int {
	if i++; i < len(t.slots) {
		return i
	}
	return 0
}

// find returns the slot of id, or the empty slot where id belongs.
func (t *table[S]) find(id fingerprint) *slot[S] {
	i := t.home(id)
	for t.slots[i].mark != 0 && t.slots[i].id != id {
		i = t.after(i)
	}
	return &t.slots[i]
}

// get returns the state of id, or the zero state if there is none.
func (t *table[S]) get(id fingerprint) (s S) {
	if t.live == 0 {
		return s
	}
	return t.find(id).state // an empty slot has the zero state
}

// put writes a state. A counter that is limiting stays so until it expires.
func (t *table[S]) put(id fingerprint, s S, m mark, now int64, budget int) {
	if 5*(t.live+1) > 4*len(t.slots) {
		t.resize(max(smallest, len(t.slots)+len(t.slots)/4+1))
	}
	at := t.find(id)
	if at.mark == 0 {
		t.live++
	} else {
		t.forget(at)
		if at.mark.expires() > now {
			m |= at.mark & isLimiting
		}
	}
	t.weight += s.weight()
	*at = slot[S]{id: id, mark: m, state: s}
	t.keep(at, budget)
}

// note marks the counter of id, if there is one, as limiting.
func (t *table[S]) note(id fingerprint, budget int) {
	if t.live == 0 {
		return
	}
	if at := t.find(id); at.mark != 0 && at.mark&isKept == 0 {
		at.mark |= isLimiting
		t.keep(at, budget)
	}
}

// keep keeps a limiting counter from eviction, but leaves an eighth of the budget for counters that can be evicted.
func (t *table[S]) keep(at *slot[S], budget int) {
	if weight := at.state.weight(); at.mark&isLimiting != 0 && t.kept+weight <= budget-budget/8 {
		at.mark |= isKept
		t.kept += weight
	}
}

// forget subtracts a counter from the weights.
func (t *table[S]) forget(at *slot[S]) {
	t.weight -= at.state.weight()
	if at.mark&isKept != 0 {
		t.kept -= at.state.weight()
	}
}

func (t *table[S]) remove(id fingerprint) {
	if t.live == 0 {
		return
	}
	i := t.home(id)
	for t.slots[i].mark != 0 {
		if t.slots[i].id == id {
			t.removeAt(i)
			return
		}
		i = t.after(i)
	}
}

// removeAt empties slot i and closes the gap, so that every counter can still be reached from its home.
func (t *table[S]) removeAt(i int) {
	t.live--
	t.forget(&t.slots[i])
	for j := t.after(i); t.slots[j].mark != 0; j = t.after(j) {
		if t.distance(t.home(t.slots[j].id), j) >= t.distance(i, j) {
			t.slots[i] = t.slots[j]
			i = j
		}
	}
	t.slots[i] = slot[S]{}
}

// distance returns the number of steps from slot i to slot j.
func (t *table[S]) distance(i, j int) int {
	if j < i {
		j += len(t.slots)
	}
	return j - i
}

// resize moves the counters to size slots.
func (t *table[S]) resize(size int) {
	old := t.slots
	t.slots = make([]slot[S], size)
	for i := range old {
		if old[i].mark != 0 {
			*t.find(old[i].id) = old[i]
		}
	}
	t.hand = 0
}

// shrink frees the memory of a table that is less than a quarter full.
func (t *table[S]) shrink() {
	if len(t.slots) > smallest && 4*t.live < len(t.slots) {
		t.resize(max(smallest, t.live+t.live/2+1))
	}
}

// sweep removes the expired counters in count slots, starting at slot from. It returns the slot to continue at, or 0
// after the last slot. If the table is resized between two calls, a counter may be missed until the next walk.
func (t *table[S]) sweep(now int64, from, count int) (next, expired int) {
	for i := from; i < len(t.slots); {
		if count--; count < 0 {
			return i, expired
		}
		if m := t.slots[i].mark; m != 0 && m.expires() <= now {
			t.removeAt(i)
			expired++
			continue // slot i may now hold a counter that was moved to close the gap
		}
		i++
	}
	return 0, expired
}

// sample is the number of counters from which an eviction chooses. If all of these are kept, it examines more, up to
// manySamples, because an eighth of all counters are not kept.
const (
	sample      = 16
	manySamples = 16 * sample
)

// evict removes the expired counters among the next sample. If none has expired, it removes the counter with the lowest
// rank. It never removes keep. limiting is the number of evicted counters that were limiting.
func (t *table[S]) evict(now int64, keep fingerprint) (expired, evicted, limiting int) {
	var victim fingerprint
	least, alive := mark(0), mark(now+1)<<markBits // the victim's mark; the least mark that has not expired
	for seen, steps := 0, 0; steps < len(t.slots) && (seen < sample || least&isKept != 0 && seen < manySamples); steps++ {
		t.hand = t.after(t.hand)
		at := &t.slots[t.hand]
		if at.mark == 0 || at.id == keep {
			continue
		}
		seen++
		if at.mark < alive {
			t.removeAt(t.hand)
			expired++
			continue
		}
		if least == 0 || at.mark.rank() < least.rank() {
			least, victim = at.mark, at.id
		}
	}
	if expired > 0 || least == 0 {
		return expired, 0, 0
	}
	t.remove(victim)
	return 0, 1, int(least & isLimiting)
}
