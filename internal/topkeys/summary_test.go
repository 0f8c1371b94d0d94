package topkeys

import (
	"encoding/binary"
	"hash/maphash"
	"testing"

	"pgregory.net/rapid"
)

var seed = maphash.MakeSeed()

// feed counts n for a key in a summary of at most k counters.
func feed(s *summary, key string, n uint64, k int) {
	s.add(maphash.String(seed, key), []byte(key), n, func(kept int) bool { return kept < k })
}

// Whatever the stream: no count is too small, none is larger than the truth by more than its error, and who has more
// than N/k is there.
func TestSummaryBoundsEveryCount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.IntRange(1, 12).Draw(t, "k")
		weight := rapid.Uint64Range(1, rapid.SampledFrom([]uint64{1, 1, 3, 1000}).Draw(t, "most"))
		key := rapid.StringMatching(rapid.SampledFrom([]string{"[ab]", "[a-e]", "[a-z]", "[a-z]{2}"}).Draw(t, "keys"))
		var s summary
		truth, total := map[string]uint64{}, uint64(0)
		for range rapid.IntRange(0, 300).Draw(t, "occurrences") {
			name, n := key.Draw(t, "key"), weight.Draw(t, "n")
			feed(&s, name, n, k)
			truth[name] += n
			total += n
		}
		if s.total != total {
			t.Fatalf("total %d, want %d", s.total, total)
		}
		check(t, &s, k)
		for name, n := range truth {
			hash := maphash.String(seed, name)
			e := s.estimate(hash)
			if e.Error > e.Count || n > e.Count || n < e.Count-e.Error {
				t.Errorf("%s: %d, but between %d-%d and %d is said", name, n, e.Count, e.Error, e.Count)
			}
			if e.Error > total/uint64(k) {
				t.Errorf("%s: error %d, want at most %d/%d", name, e.Error, total, k)
			}
			c := s.byHash[hash]
			if c == nil && n > total/uint64(k) {
				t.Errorf("%s has %d of %d and is not among %d", name, n, total, k)
			}
			if c != nil && string(c.key) != name {
				t.Errorf("%s is kept as %s", name, c.key)
			}
		}
		if e := s.estimate(1); e.Count != e.Error {
			t.Errorf("a key that never came has %d at least", e.Count-e.Error)
		}
	})
}

// check looks at the structure: buckets ascend, hold each counter once, and add up to the total.
func check(t *rapid.T, s *summary, k int) {
	counters, counted := 0, uint64(0)
	var last *bucket
	for b := s.lowest; b != nil; last, b = b, b.next {
		if b.prev != last || last != nil && last.count >= b.count || b.first == nil {
			t.Fatalf("bucket of %d behind %v", b.count, last)
		}
		var before *counter
		for c := b.first; c != nil; before, c = c, c.next {
			if c.prev != before || c.in != b || s.byHash[c.hash] != c {
				t.Fatalf("counter %s hangs wrong", c.key)
			}
			counters++
			counted += b.count
		}
	}
	if counters != len(s.byHash) || counters > k || counted != s.total {
		t.Fatalf("%d counters, %d by hash, at most %d; they have %d of %d", counters, len(s.byHash), k, counted, s.total)
	}
}

// The bounds of counts hold, too, where room for a counter is refused at one time, and would be given at another.
func TestSummaryRefusedAtTimes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s summary
		truth := map[string]uint64{}
		for range rapid.IntRange(0, 100).Draw(t, "occurrences") {
			name, room := rapid.StringMatching("[a-h]").Draw(t, "key"), rapid.Bool().Draw(t, "room")
			s.add(maphash.String(seed, name), []byte(name), 1, func(int) bool { return room })
			truth[name]++
		}
		for name, n := range truth {
			if e := s.estimate(maphash.String(seed, name)); n > e.Count || n < e.Count-e.Error {
				t.Errorf("%s: %d, but between %d-%d and %d is said", name, n, e.Count, e.Error, e.Count)
			}
		}
	})
}

// Counts end at the largest number, and do not begin again.
func TestSummarySaturates(t *testing.T) {
	var s summary
	for range 3 {
		feed(&s, "a", 1<<63, 1)
	}
	if e := s.estimate(maphash.String(seed, "a")); e.Count != 1<<64-1 || s.total != 1<<64-1 {
		t.Errorf("count %d of %d", e.Count, s.total)
	}
}

// A summary that may not even have one counter says that a key may be everything.
func TestSummaryWithoutCounters(t *testing.T) {
	var s summary
	feed(&s, "a", 7, 0)
	if e := s.estimate(maphash.String(seed, "a")); e != (Estimate{7, 7}) {
		t.Errorf("%+v, want 7 and an error of 7", e)
	}
}

// In a full summary nothing is allocated, whether the key is kept or comes again.
func TestSummaryReusesMemory(t *testing.T) {
	var s summary
	room := func(kept int) bool { return kept < 100 }
	key := make([]byte, 8)
	n := uint64(0)
	next := func() {
		n++
		binary.LittleEndian.PutUint64(key, n%1000)
		s.add(maphash.Bytes(seed, key), key, 1+n%3, room)
	}
	for range 10_000 {
		next()
	}
	if per := testing.AllocsPerRun(10_000, next); per > 0.01 { // a map may grow in place, rarely
		t.Errorf("%v allocations for each occurrence", per)
	}
}

func BenchmarkSummary(b *testing.B) {
	for name, keys := range map[string]uint64{"one key": 1, "kept keys": 100, "mostly new keys": 1 << 20} {
		b.Run(name, func(b *testing.B) {
			var s summary
			room := func(kept int) bool { return kept < 100 }
			key := make([]byte, 8)
			b.ReportAllocs()
			for n := uint64(0); b.Loop(); n++ {
				binary.LittleEndian.PutUint64(key, n*0x9e3779b97f4a7c15%keys)
				s.add(maphash.Bytes(seed, key), key, 1, room)
			}
		})
	}
}
