package topkeys

import "math"

// sketch counts the keys of a stream in bounded memory. It is a space-saving sketch (Ahmed Metwally, Divyakant Agrawal,
// Amr El Abbadi: Efficient Computation of Frequent and Top-k Elements in Data Streams, ICDT 2005), with counters for at
// most k keys. When all counters are used, a new key replaces a key with the lowest count and starts from that count,
// which is also its error, because all of it may belong to the replaced key. So in a stream with N hits
//
//	count - err <= true count <= count    for a key with a counter,
//	true count <= floor <= N/k            for a key without one,
//
// and every key with more than N/k hits has a counter. The same holds if an occurrence has several hits (Radu Berinde,
// Piotr Indyk, Graham Cormode, Martin J. Strauss: Space-optimal Heavy Hitters with Strong Error Bounds, TODS 2010).
//
// A process has a sketch per rule, and all together exceed the CPU's caches, so a hit must touch little memory: for a
// key with a counter one slot of 16 bytes in a table with linear probing. A hand that cycles through the table finds
// the lowest count. The table has no pointers, so that the garbage collector skips it (ADR 0026). A key is identified
// by a 64-bit hash with a seed of the process.
//
// The zero value is ready to use. A sketch is not safe for concurrent use.
type sketch struct {
	slots   []slot   // slots by hash; their number is 0 or a power of two, and at least one slot is free
	details []detail // details of the keys in the slots with the same indexes
	keys    []byte   // cells of width bytes, one per counter
	// floor is the count of the last key that was replaced. No counter is lower, because counts only rise and floor was
	// the lowest. A key without a counter was replaced at this count or a lower one, or never occurred. If there are no
	// counters, floor is N.
	floor uint64
	width uint32
	used  uint16 // number of counters
	hand  uint16 // the slot at which the last search for the lowest count stopped
	full  bool   // whether a key has been refused a counter of its own, so that later keys cannot start from 0
}

// slot has the data that each hit of a key needs. It is free if count is 0.
type slot struct{ hash, count uint64 }

// detail has the data that hits of a key do not need.
type detail struct {
	err          uint64
	cell, length uint32 // position of the key in sketch.keys
}

// add counts n > 0 hits of a key. Before it adds a counter, it calls mayGrow with the current number.
func (s *sketch) add(hash uint64, key []byte, n uint64, mayGrow func(has int) bool) {
	i, found := s.find(hash)
	switch {
	case found:
		s.slots[i].count = sum(s.slots[i].count, n)
	case !s.full && mayGrow(int(s.used)):
		const most, of = 7, 8 // maximum part of used slots
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

// find returns the index of the key's slot; if there is none, of the free slot to use, or 0 in an empty table.
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

// home returns the first index for a key.
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

// store writes a key into a cell, which may be a new last cell, and returns the key's length.
func (s *sketch) store(cell uint32, key []byte) uint32 {
	s.makeRoom(max(int(s.used), int(cell)+1), len(key))
	return uint32(copy(s.keys[int(cell)*int(s.width):], key)) //nolint:gosec // gRPC's messages are shorter than 4 GiB
}

// makeRoom makes room for this number of cells, and widens all of them if the key's length exceeds their width.
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

// key returns the key in slot i.
func (s *sketch) key(i int) []byte {
	d := &s.details[i]
	return s.keys[int(d.cell)*int(s.width):][:d.length]
}

// least returns the index of a counter with the lowest count. If most keys have few hits, many counters have that
// count, and the hand soon finds one of them. It cycles through the whole table only after the lowest count has risen.
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

// remove frees a slot, and moves later slots that would otherwise not be found.
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

// Estimate is a bounded count: the true count is between Count-Error and Count.
type Estimate struct{ Count, Error uint64 }

func (e Estimate) plus(o Estimate) Estimate {
	return Estimate{sum(e.Count, o.Count), sum(e.Error, o.Error)}
}

// estimate returns an estimate for any key, with or without a counter.
func (s *sketch) estimate(hash uint64) Estimate {
	if i, found := s.find(hash); found {
		return Estimate{s.slots[i].count, s.details[i].err}
	}
	return Estimate{s.floor, s.floor}
}

// sum adds and saturates.
func sum(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}
