package memstore

import (
	"context"
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
