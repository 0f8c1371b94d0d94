package topkeys

import "math"

// summary counts the keys of one stream in bounded memory: a space-saving sketch with its stream summary (Ahmed
// Metwally, Divyakant Agrawal, Amr El Abbadi: Efficient Computation of Frequent and Top-k Elements in Data Streams,
// ICDT 2005). It has counters for at most k keys. When all are taken, a new key replaces the key with the least count
// and starts from that count, which is its error: all of it may be the other key's. So in a stream with N hits
//
//	count - err <= true count <= count    of a key with a counter,
//	true count <= least <= N/k            of a key without,
//
// and every key with more than N/k hits has a counter. The same holds if an occurrence has several hits (Radu Berinde,
// Piotr Indyk, Graham Cormode, Martin J. Strauss: Space-optimal Heavy Hitters with Strong Error Bounds, TODS 2010).
//
// Counters with the same count share a bucket, and the buckets are sorted. So the least count is at hand, and one hit
// moves a counter at most one bucket further. A key's identity is its hash of 64 bits, with a seed of the process.
//
// The zero value is ready to use. It is not safe for concurrent use.
type summary struct {
	byHash map[uint64]*counter
	lowest *bucket // buckets ascend from here
	spare  *bucket // was emptied last
	total  uint64  // N
	full   bool    // a key got no counter of its own: no later key may start from 0
}

// counter is one key with its count.
type counter struct {
	hash       uint64
	key        []byte
	err        uint64
	in         *bucket
	prev, next *counter // in the same bucket
}

// bucket has the counters with one count.
type bucket struct {
	count      uint64
	first      *counter
	prev, next *bucket
}

// add counts n > 0 hits of a key. Before it makes another counter, it calls mayGrow with the number that it has.
func (s *summary) add(hash uint64, key []byte, n uint64, mayGrow func(has int) bool) {
	s.total = sum(s.total, n)
	c := s.byHash[hash]
	switch {
	case c != nil:
	case !s.full && mayGrow(len(s.byHash)):
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

// replaceLeast gives the key the counter with the least count. It returns nil if there is no counter.
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

// raise adds n to a counter, and moves it to the bucket of its new count.
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

// detach takes a counter out of its bucket.
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

// remove takes out an empty bucket, and saves it for the next insert.
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

// insert makes a bucket between two others, each of which may be nil.
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

// Estimate bounds a count: it is at least Count-Error, and at most Count.
type Estimate struct{ Count, Error uint64 }

func (e Estimate) plus(o Estimate) Estimate {
	return Estimate{sum(e.Count, o.Count), sum(e.Error, o.Error)}
}

// estimate returns the count of any key, with a counter or without.
func (s *summary) estimate(hash uint64) Estimate {
	if c := s.byHash[hash]; c != nil {
		return Estimate{c.in.count, c.err}
	}
	switch {
	case !s.full:
		return Estimate{}
	case s.lowest == nil: // it did not even get one counter
		return Estimate{s.total, s.total}
	default:
		return Estimate{s.lowest.count, s.lowest.count}
	}
}

// sum stops at the largest number.
func sum(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}
