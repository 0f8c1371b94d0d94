package topkeys

import (
	"encoding/binary"
	"hash/maphash"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var seed = maphash.MakeSeed()

// feed counts n for a key in a sketch of at most k counters.
func feed(s *sketch, key string, n uint64, k int) {
	s.add(maphash.String(seed, key), []byte(key), n, func(kept int) bool { return kept < k })
}

// Whatever the stream: no count is too small, none is larger than the truth by more than its error, and who has more
// than N/k is there.
func TestSketchBoundsEveryCount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.IntRange(1, 12).Draw(t, "k")
		weight := rapid.Uint64Range(1, rapid.SampledFrom([]uint64{1, 1, 3, 1000}).Draw(t, "most"))
		key := rapid.StringMatching(rapid.SampledFrom([]string{"[ab]", "[a-e]", "[a-z]", "[a-z]{2}", "[a-c]{0,70}"}).Draw(t, "keys"))
		var s sketch
		truth, total := map[string]uint64{}, uint64(0)
		for range rapid.IntRange(0, 300).Draw(t, "occurrences") {
			name, n := key.Draw(t, "key"), weight.Draw(t, "n")
			feed(&s, name, n, k)
			truth[name] += n
			total += n
		}
		if s.total() != total {
			t.Fatalf("total %d, want %d", s.total(), total)
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
			i, found := s.find(hash)
			if !found && n > total/uint64(k) {
				t.Errorf("%s has %d of %d and is not among %d", name, n, total, k)
			}
			if found && string(s.key(i)) != name {
				t.Errorf("%s is kept as %s", name, s.key(i))
			}
		}
		if e := s.estimate(1); e.Count != e.Error {
			t.Errorf("a key that never came has %d at least", e.Count-e.Error)
		}
	})
}

// check looks at the structure: each counter is found, none is below the floor, there are not too many, and a slot is
// free.
func check(t *rapid.T, s *sketch, k int) {
	counters := 0
	for i, c := range s.slots {
		if c.count == 0 {
			if d := s.details[i]; c != (slot{}) || d != (detail{}) {
				t.Fatalf("a free slot has %+v and %+v", c, d)
			}
			continue
		}
		counters++
		if at, found := s.find(c.hash); at != i || !found {
			t.Fatalf("%s is in slot %d and found in %d", s.key(i), i, at)
		}
		if c.count < s.floor {
			t.Fatalf("%s has %d, and the floor is %d", s.key(i), c.count, s.floor)
		}
	}
	if counters != int(s.used) || counters > k || counters > 0 && counters == len(s.slots) {
		t.Fatalf("%d counters in %d slots, %d are used, at most %d", counters, len(s.slots), s.used, k)
	}
}

// The bounds of counts hold, too, where room for a counter is refused at one time, and would be given at another.
func TestSketchRefusedAtTimes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s sketch
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

// Keys of any length stay intact while longer and shorter keys are added or replace others.
func TestSketchKeepsKeysOfAnyLength(t *testing.T) {
	var s sketch
	longest := strings.Repeat("abcdefghij", 30)
	for _, length := range []int{0, 5, 16, 17, 100, 3, 300, 64} {
		feed(&s, longest[:length], 1, 6)
		for i, c := range s.slots {
			key := string(s.key(i))
			if c.count > 0 && (!strings.HasPrefix(longest, key) || c.hash != maphash.String(seed, key)) {
				t.Errorf("after a key of %d bytes: a counter has the key %q", length, key)
			}
		}
	}
}

// Counts end at the largest number, and do not begin again.
func TestSketchSaturates(t *testing.T) {
	var s sketch
	for range 3 {
		feed(&s, "a", 1<<63, 1)
	}
	if e := s.estimate(maphash.String(seed, "a")); e.Count != 1<<64-1 || s.total() != 1<<64-1 {
		t.Errorf("count %d of %d", e.Count, s.total())
	}
}

// A sketch that may not even have one counter says that a key may be everything.
func TestSketchWithoutCounters(t *testing.T) {
	var s sketch
	feed(&s, "a", 7, 0)
	if e := s.estimate(maphash.String(seed, "a")); e != (Estimate{7, 7}) {
		t.Errorf("%+v, want 7 and an error of 7", e)
	}
}

// In a full sketch nothing is allocated, whether the key is kept or comes again.
func TestSketchReusesMemory(t *testing.T) {
	var s sketch
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
