package topkeys

import "math"

// sketch counts the keys of one stream in bounded memory: a space-saving sketch (Ahmed Metwally, Divyakant Agrawal,
// Amr El Abbadi: Efficient Computation of Frequent and Top-k Elements in Data Streams, ICDT 2005). It has counters for
// at most k keys. When all are taken, a new key replaces a key with the least count and starts from that count, which
// is its error: all of it may be the other key's. So in a stream with N hits
//
//	count - err <= true count <= count    of a key with a counter,
//	true count <= floor <= N/k            of a key without,
//
// and every key with more than N/k hits has a counter. The same holds if an occurrence has several hits (Radu Berinde,
// Piotr Indyk, Graham Cormode, Martin J. Strauss: Space-optimal Heavy Hitters with Strong Error Bounds, TODS 2010).
//
// A process has as many sketches as its rules need, far more than fit into the CPU's caches, so a hit must touch little
// memory: for a key with a counter that is one slot, 16 bytes, of a table with linear probing. The least count is found
// by a hand that goes round the table. Nothing in the table is a pointer, so that the garbage collector passes over it
// (ADR 0026). A key's identity is its hash of 64 bits, with a seed of the process.
//
// The zero value is ready to use. It is not safe for concurrent use.
type sketch struct {
	slots   []slot   // by hash; their number is 0 or a power of two, and one of them is always free
	details []detail // of the key in the slot with the same index
	keys    []byte   // cells of width bytes, one for each counter
	// floor is the count of the last key that was replaced. No counter has less, since none falls and it was the least.
	// A key without a counter was replaced at this count or a lower one, or never came. Without any counter it is N.
	floor uint64
	width uint32
	used  uint16 // counters
	hand  uint16 // the slot at which the search for the least count stopped
	full  bool   // a key got no counter of its own: no later key may start from 0
}

// slot is what each hit of a key needs. It is free if count is 0.
type slot struct{ hash, count uint64 }

// detail is what a key's hits do not need.
type detail struct {
	err          uint64
	cell, length uint32 // of the key, in sketch.keys
}

// add counts n > 0 hits of a key. Before it makes another counter, it calls mayGrow with the number that it has.
func (s *sketch) add(hash uint64, key []byte, n uint64, mayGrow func(has int) bool) {
	i, found := s.find(hash)
	switch {
	case found:
		s.slots[i].count = sum(s.slots[i].count, n)
	case !s.full && mayGrow(int(s.used)):
		const most, of = 7, 8 // slots that are taken
		if of*(int(s.used)+1) > most*len(s.slots) {
			s.grow()
			i, _ = s.find(hash)
		}
		s.slots[i] = slot{hash, n}
		s.details[i] = detail{0, uint32(s.used), s.store(uint32(s.used), key)}
		s.used++
	case s.used == 0:
		s.full = true
		s.floor = sum(s.floor, n)
	default:
		s.full = true
		least := s.least()
		s.floor = s.slots[least].count
		s.slots[i] = slot{hash, sum(s.floor, n)}
		cell := s.details[least].cell
		s.details[i] = detail{s.floor, cell, s.store(cell, key)}
		s.remove(least)
	}
}

// find returns the index of the key's slot. If it has none, find returns the index of the free slot that it would take,
// or 0 if there are no slots.
func (s *sketch) find(hash uint64) (i int, found bool) {
	if len(s.slots) == 0 {
		return 0, false
	}
	for i = s.home(hash); s.slots[i].count != 0; i = s.next(i) {
		if s.slots[i].hash == hash {
			return i, true
		}
	}
	return i, false
}

// home returns the first index where a key may be.
func (s *sketch) home(hash uint64) int {
	return int(hash & uint64(len(s.slots)-1)) //nolint:gosec // below len(s.slots)
}

func (s *sketch) next(i int) int { return (i + 1) & (len(s.slots) - 1) }

// grow doubles the table.
func (s *sketch) grow() {
	slots, details := s.slots, s.details
	size := max(2, 2*len(slots))
	s.slots, s.details = make([]slot, size), make([]detail, size)
	for i, c := range slots {
		if c.count != 0 {
			to, _ := s.find(c.hash)
			s.slots[to], s.details[to] = c, details[i]
		}
	}
}

// store writes a key into a cell, which may be the first behind the last one, and returns the key's length.
func (s *sketch) store(cell uint32, key []byte) uint32 {
	s.makeRoom(max(int(s.used), int(cell)+1), len(key))
	return uint32(copy(s.keys[int(cell)*int(s.width):], key)) //nolint:gosec // gRPC's messages are shorter than 4 GiB
}

// makeRoom makes room for that many cells, all of them as wide as a key of that length needs, if it is longer than
// those before.
func (s *sketch) makeRoom(cells, length int) {
	const step = 16 // so that keys that grow by a few bytes do not widen the cells each time
	was := int(s.width)
	width := max(was, (length+step-1)/step*step)
	if width == was && cells*width <= cap(s.keys) {
		s.keys = s.keys[:cells*width]
		return
	}
	keys := make([]byte, cells*width, (cells+cells/8)*width)
	for i := range int(s.used) {
		copy(keys[i*width:], s.keys[i*was:(i+1)*was])
	}
	s.keys, s.width = keys, uint32(width) //nolint:gosec // as above
}

// key returns the key of the slot with the index.
func (s *sketch) key(i int) []byte {
	d := &s.details[i]
	return s.keys[int(d.cell)*int(s.width):][:d.length]
}

// least returns the index of a counter with the least count. Where hits come one by one, many counters have that count,
// and the hand finds the next of them soon. It goes round the whole table only when the least count has risen.
func (s *sketch) least() int {
	i, least := int(s.hand), -1
	for range s.slots {
		i = s.next(i)
		count := s.slots[i].count
		if count == 0 {
			continue
		}
		if least < 0 || count < s.slots[least].count {
			least = i
		}
		if count == s.floor {
			break
		}
	}
	s.hand = uint16(least) //nolint:gosec // a table for MaxPerRule counters has 2,048 slots
	return least
}

// remove frees a slot, and moves those behind it that would no longer be found.
func (s *sketch) remove(i int) {
	s.slots[i] = slot{}
	for j := s.next(i); s.slots[j].count != 0; j = s.next(j) {
		if fromHome := (j - s.home(s.slots[j].hash)) & (len(s.slots) - 1); fromHome >= (j-i)&(len(s.slots)-1) {
			s.slots[i], s.details[i] = s.slots[j], s.details[j]
			s.slots[j] = slot{}
			i = j
		}
	}
	s.details[i] = detail{}
}

// total returns N.
func (s *sketch) total() uint64 {
	if s.used == 0 {
		return s.floor
	}
	var n uint64
	for _, c := range s.slots {
		n = sum(n, c.count)
	}
	return n
}

// Estimate bounds a count: it is at least Count-Error, and at most Count.
type Estimate struct{ Count, Error uint64 }

func (e Estimate) plus(o Estimate) Estimate {
	return Estimate{sum(e.Count, o.Count), sum(e.Error, o.Error)}
}

// estimate returns the count of any key, with a counter or without.
func (s *sketch) estimate(hash uint64) Estimate {
	if i, found := s.find(hash); found {
		return Estimate{s.slots[i].count, s.details[i].err}
	}
	return Estimate{s.floor, s.floor}
}

// sum stops at the largest number.
func sum(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}
