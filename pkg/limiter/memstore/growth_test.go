package memstore

import (
	"context"
	"math/rand/v2"
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// TestPairsHaveNoPointers: the garbage collector does not look into the slots, however many there are.
func TestPairsHaveNoPointers(t *testing.T) {
	var check func(at string, typ reflect.Type)
	check = func(at string, typ reflect.Type) {
		switch k := typ.Kind(); {
		case k == reflect.Struct:
			for f := range typ.Fields() {
				check(at+"."+f.Name, f.Type)
			}
		case k < reflect.Bool || k > reflect.Complex128 || k == reflect.Uintptr:
			t.Errorf("%s is a %s: the garbage collector would walk all counters", at, typ)
		}
	}
	check("slot", reflect.TypeFor[slot[pair]]())
}

// TestCostDoesNotGrowWithKeys: a hit allocates nothing and a key is found in as many steps, however many keys there
// are.
func TestCostDoesNotGrowWithKeys(t *testing.T) {
	policy, err := limiter.NewPolicy(limiter.Params{Algorithm: limiter.Funnel, Limit: 100, Window: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1000, 10_000, 300_000} {
		s, err := New(Options{SweepEvery: time.Hour, Now: func() int64 { return 0 }})
		if err != nil {
			t.Fatal(err)
		}
		hits, out := []limiter.Hit{{Policy: policy, N: 1}}, make([]limiter.Decision, 1)
		take := func() {
			if err := s.Take(context.Background(), hits, out); err != nil {
				t.Fatal(err)
			}
		}
		for i := range n {
			hits[0].Key = strconv.Itoa(i)
			take()
		}
		if allocs := testing.AllocsPerRun(1000, take); allocs != 0 {
			t.Errorf("%d keys: a hit allocates %.1f times, want none", n, allocs)
		}
		// Linear probing at a load of 0.8 takes 2 steps more on average: Knuth, The Art of Computer Programming 3, 6.4.
		if mean := meanSteps(s); mean > 3 {
			t.Errorf("%d keys: a key is found after %.1f steps, want at most 3", n, mean)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The sums with which a table judges its memory are those of its counters, whatever requests did to these.
func TestSumsAreThoseOfTheCounters(t *testing.T) {
	now, random := int64(1), rand.New(rand.NewPCG(1, 2))
	s, err := New(Options{MaxCounters: 100, SweepEvery: time.Hour, Now: func() int64 { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var policies [2]*limiter.Policy
	for i, a := range []limiter.Algorithm{limiter.Funnel, limiter.SlidingLog} {
		if policies[i], err = limiter.NewPolicy(limiter.Params{Algorithm: a, Limit: 4, Window: time.Minute}); err != nil {
			t.Fatal(err)
		}
	}
	out := make([]limiter.Decision, 1)
	for range 20_000 {
		now += random.Int64N(time.Second.Microseconds())
		hit := limiter.Hit{Key: strconv.Itoa(random.IntN(150)), Policy: policies[random.IntN(2)], N: random.Int64N(5) - 1}
		hit.Peek = hit.N == 0
		if err := s.Take(context.Background(), []limiter.Hit{hit}, out); err != nil {
			t.Fatal(err)
		}
	}
	for i := range s.shards {
		checkSums(t, &s.shards[i].pairs)
		checkSums(t, &s.shards[i].lists)
	}
}

// A counter that has denied a hit limits a client until it expires, though later hits are allowed.
func TestCounterLimitsUntilItExpires(t *testing.T) {
	const budget = 1 << 10
	table, id := table[pair]{}, fingerprint{1, 1}
	for i, put := range []struct {
		now, expires   int64
		denies, limits bool
	}{{0, 100, true, true}, {50, 200, false, true}, {250, 300, false, false}} {
		table.put(id, pair{}, newMark(put.expires, put.denies), put.now, budget)
		if limits := table.find(id).mark&isLimiting != 0; limits != put.limits {
			t.Errorf("after hit %d the counter limits: %t, want %t", i, limits, put.limits)
		}
	}
	checkSums(t, &table)
}

func checkSums[S state](t *testing.T, table *table[S]) {
	t.Helper()
	live, weight, kept := 0, 0, 0
	for _, at := range table.slots {
		if at.mark == 0 {
			continue
		}
		live, weight = live+1, weight+at.state.weight()
		if at.mark&isKept != 0 {
			kept += at.state.weight()
		}
	}
	if live != table.live || weight != table.weight || kept != table.kept {
		t.Errorf("%d counters of %d bytes, %d of them kept; the table counts %d, %d, %d", live, weight, kept, table.live,
			table.weight, table.kept)
	}
}

// meanSteps returns the mean distance of counters from their homes.
func meanSteps(s *Store) float64 {
	steps, live := 0, 0
	for i := range s.shards {
		table := &s.shards[i].pairs
		live += table.live
		for j, at := range table.slots {
			if at.mark != 0 {
				steps += table.distance(table.home(at.id), j)
			}
		}
	}
	return float64(steps) / float64(live)
}
