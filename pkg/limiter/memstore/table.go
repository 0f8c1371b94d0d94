package memstore

import (
	"math"
	"math/bits"
	"slices"

	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// fingerprint stands for a key: two hashes of it with seeds that only this process knows, so that nobody can
// choose keys that collide. Among n keys two share a fingerprint with a probability of about n^2/2^129: 1 in
// 4*10^25 for 4,000,000 keys.
type fingerprint struct{ hi, lo uint64 }

// state is what a table keeps of a counter.
type state interface {
	// weight is about what the counter takes, in bytes.
	weight() int
}

// pair is a state of two integers. It has no pointer, so that the garbage collector need not look at it.
type pair struct{ a, b int64 }

// keyBytes is about what a counter of two integers takes, in bytes: a slot of 40 at 64 to 80 % load.
const keyBytes = 64

func (pair) weight() int { return keyBytes }

// list is a state that remembers more.
type list struct {
	storekit.State
	room int32             // of List's array, in integers, including those before its start
	of   limiter.Algorithm // whose state it is: no other one can read it
}

func (l list) weight() int { return 2*keyBytes + 8*int(l.room) }

// follow is the list to keep after old was changed to next. A log drops its oldest hits by moving its start
// forward, which frees nothing: an array that is mostly unused is left for a copy.
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

// sameArray says whether two slices end in the same element of the same array.
func sameArray(a, b []int64) bool {
	return cap(a) > 0 && cap(b) > 0 && &a[:cap(a)][cap(a)-1] == &b[:cap(b)][cap(b)-1]
}

// mark is when a counter expires, in microseconds since the Unix epoch times four, plus isLimiting and isKept. 0 is no
// counter.
type mark int64

const (
	isLimiting mark = 1 // it has denied a request, or has nothing left after several hits
	isKept     mark = 2 // it is limiting, and is not evicted: see table.keep
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

// rank orders counters by which is evicted first: one that is not kept, or that expires earlier.
func (m mark) rank() mark { return m + m&isKept<<60 }

// slot is one counter of a table.
type slot[S state] struct {
	id    fingerprint
	mark  mark
	state S
}

// table is a hash table with open addressing and linear probing. Beside what a map does, it can be walked a
// few slots at a time, which is what sweeping and evicting need, and it grows by a quarter, so that a counter
// of two integers takes 40 bytes at 64 to 80 % load: 50 to 63 bytes. A slot's home grows with its fingerprint, so
// that a resize copies from front to back.
type table[S state] struct {
	slots  []slot[S]
	live   int // counters
	weight int // of all counters, in bytes
	kept   int // of those that are not evicted, in bytes
	hand   int // where the next eviction looks
}

// smallest is the number of slots of a small table.
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

// find returns the slot of id, or the empty slot where it would go.
func (t *table[S]) find(id fingerprint) *slot[S] {
	i := t.home(id)
	for t.slots[i].mark != 0 && t.slots[i].id != id {
		i = t.after(i)
	}
	return &t.slots[i]
}

// get returns the state of id, the zero state if there is none.
func (t *table[S]) get(id fingerprint) (s S) {
	if t.live == 0 {
		return s
	}
	return t.find(id).state // an empty slot's is zero
}

// put writes a state. A counter that limits somebody does so until it expires.
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

// note says that the counter of id, if there is one, has denied a request.
func (t *table[S]) note(id fingerprint, budget int) {
	if t.live == 0 {
		return
	}
	if at := t.find(id); at.mark != 0 && at.mark&isKept == 0 {
		at.mark |= isLimiting
		t.keep(at, budget)
	}
}

// keep has a limiting counter kept, if there is room: an eighth of the budget is for counters that can be evicted.
func (t *table[S]) keep(at *slot[S], budget int) {
	if weight := at.state.weight(); at.mark&isLimiting != 0 && t.kept+weight <= budget-budget/8 {
		at.mark |= isKept
		t.kept += weight
	}
}

// forget takes a counter out of the weights.
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

// removeAt empties slot i and closes the gap, so that every counter is still reached from its home.
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

// distance is how many steps lead from slot i to slot j.
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

// shrink returns the memory of a table that is far emptier than it was.
func (t *table[S]) shrink() {
	if len(t.slots) > smallest && 4*t.live < len(t.slots) {
		t.resize(max(smallest, t.live+t.live/2+1))
	}
}

// sweep drops the counters that expired among count slots from slot from on, and returns the slot to go on
// with: 0 after the last. A resize between two calls may hide a counter until the next walk.
func (t *table[S]) sweep(now int64, from, count int) (next, expired int) {
	for i := from; i < len(t.slots); {
		if count--; count < 0 {
			return i, expired
		}
		if m := t.slots[i].mark; m != 0 && m.expires() <= now {
			t.removeAt(i)
			expired++
			continue // the gap was closed by a counter that is yet to be seen
		}
		i++
	}
	return 0, expired
}

// sample is how many counters an eviction chooses from, and manySamples how many it looks at to find one that is not
// kept: an eighth of them are not.
const (
	sample      = 16
	manySamples = 16 * sample
)

// evict drops the expired of the next sample counters, or, if none is, the one that matters for the shortest time of
// those that are not kept. keep stays. limiting is how many of the dropped ones limited somebody.
func (t *table[S]) evict(now int64, keep fingerprint) (expired, evicted, limiting int) {
	var victim fingerprint
	least, alive := mark(0), mark(now+1)<<markBits // the victim's; the least of a counter that has not expired
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
