package topkeys

import "math"

// summary counts the keys of one stream in bounded memory: Space-Saving with its stream summary (Ahmed Metwally, Divyakant
// Agrawal, Amr El Abbadi: Efficient Computation of Frequent and Top-k Elements in Data Streams, ICDT 2005). It keeps a
// counter for each of at most k keys. A key that comes when all are taken replaces the one with the least count, and goes on
// from it: that count may be all another's, and is the new key's error. So for a stream that weighs N in all
//
//	count - err <= true count <= count    of a key that is kept,
//	true count <= least <= N/k            of one that is not,
//
// and every key with more than N/k is kept. The same holds where one occurrence weighs more than 1 (Radu Berinde, Piotr
// Indyk, Graham Cormode, Martin J. Strauss: Space-optimal Heavy Hitters with Strong Error Bounds, TODS 2010).
//
// Counters of the same count hang on one bucket, and buckets are in order: the least is at hand, and an occurrence that weighs
// 1 moves its counter to the next bucket at most. Keys are known by a hash of 64 bits with a seed of the process.
//
// The zero value is ready to use. It is not safe for concurrent use.
type summary struct {
	byHash map[uint64]*counter
	lowest *bucket // buckets ascend from here
	spare  *bucket // was emptied last
	total  uint64  // N
	full   bool    // a key was refused a counter of its own: no later one may start from 0
}

// counter is one kept key.
type counter struct {
	hash       uint64
	key        []byte
	err        uint64
	in         *bucket
	prev, next *counter // in the same bucket
}

// bucket is the counters of one count.
type bucket struct {
	count      uint64
	first      *counter
	prev, next *bucket
}

// add counts n > 0 for a key. room is asked before a further counter is made, and may refuse it.
func (s *summary) add(hash uint64, key []byte, n uint64, room func(kept int) bool) {
	s.total = sum(s.total, n)
	c := s.byHash[hash]
	switch {
	case c != nil:
	case !s.full && room(len(s.byHash)):
		c = &counter{hash: hash, key: append([]byte(nil), key...)}
		if s.byHash == nil {
			s.byHash = map[uint64]*counter{}
		}
		s.byHash[hash] = c
	default:
		s.full = true
		if c = s.replaceLeast(hash, key); c == nil {
			return
		}
	}
	s.raise(c, n)
}

// replaceLeast gives the key the counter with the least count, nil if there is none at all.
func (s *summary) replaceLeast(hash uint64, key []byte) *counter {
	if s.lowest == nil {
		return nil
	}
	c := s.lowest.first
	delete(s.byHash, c.hash)
	c.hash, c.key, c.err = hash, append(c.key[:0], key...), c.in.count
	s.byHash[hash] = c
	return c
}

// raise adds n to a counter: it moves to the bucket of its new count.
func (s *summary) raise(c *counter, n uint64) {
	from, count := c.in, n
	after, next := (*bucket)(nil), s.lowest
	if from != nil {
		count = sum(from.count, n)
		after, next = from, from.next
		s.detach(c)
		if from.first == nil {
			after = from.prev
			s.remove(from)
		}
	}
	for next != nil && next.count < count {
		after, next = next, next.next
	}
	if next == nil || next.count != count {
		next = s.insert(count, after, next)
	}
	c.in, c.prev, c.next = next, nil, next.first
	if next.first != nil {
		next.first.prev = c
	}
	next.first = c
}

// detach takes a counter off its bucket.
func (s *summary) detach(c *counter) {
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		c.in.first = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	}
}

// remove takes out an empty bucket, and keeps it for the next insert.
func (s *summary) remove(b *bucket) {
	if b.prev != nil {
		b.prev.next = b.next
	} else {
		s.lowest = b.next
	}
	if b.next != nil {
		b.next.prev = b.prev
	}
	s.spare = b
}

// insert makes a bucket between two, either of which may be nil.
func (s *summary) insert(count uint64, prev, next *bucket) *bucket {
	b := s.spare
	if b == nil {
		b = &bucket{}
	}
	s.spare = nil
	*b = bucket{count: count, prev: prev, next: next}
	if prev != nil {
		prev.next = b
	} else {
		s.lowest = b
	}
	if next != nil {
		next.prev = b
	}
	return b
}

// Estimate is what is known about a count: it is at least Count-Error, and at most Count.
type Estimate struct{ Count, Error uint64 }

func (e Estimate) plus(o Estimate) Estimate {
	return Estimate{sum(e.Count, o.Count), sum(e.Error, o.Error)}
}

// estimate is the count of any key, kept or not.
func (s *summary) estimate(hash uint64) Estimate {
	if c := s.byHash[hash]; c != nil {
		return Estimate{c.in.count, c.err}
	}
	switch {
	case !s.full:
		return Estimate{}
	case s.lowest == nil: // it was refused even one counter
		return Estimate{s.total, s.total}
	default:
		return Estimate{s.lowest.count, s.lowest.count}
	}
}

// sum stays at the largest number.
func sum(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}
