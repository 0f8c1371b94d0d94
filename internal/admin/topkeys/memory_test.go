package topkeys

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

// All cores at once, with readers, halves and reloads between: nothing is lost, and counts are exact where there is
// room.
func TestManyGoroutines(t *testing.T) {
	const goroutines, each = 16, 3000
	top, set := New(Options{PerRule: 50}), casetest.Compile(t, shop)
	top.Keep(set)
	rules := set.Domain("shop").Rules()
	hit(top, rules[0], "first", 1, false) // a rule that is first asked during a reload may miss that
	hit(top, rules[1], "first", 1, false)
	top.countAll()
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range each {
				hit(top, rules[i%2], strconv.Itoa(i%20), 1, g%2 == 0)
				if i%500 == 0 {
					keys(t, top, Query{By: adminapi.ByDenied, N: 5})
					top.Keep(set)
				}
			}
		})
	}
	wg.Wait()
	for _, by := range []adminapi.TopBy{adminapi.ByHits, adminapi.ByDenied} {
		got := keys(t, top, Query{By: by, N: 20})
		if len(got) != 20 {
			t.Errorf("%d keys, want 20", len(got))
		}
		for _, k := range got {
			if want := uint64(goroutines * each / 20); k.Hits != want || k.Denied != want/2 || k.HitsError+k.DeniedError != 0 {
				t.Errorf("%+v; want %d hits, half of them denied", k, want)
			}
		}
	}
}

// Halves begin and rules are removed while all cores count: every counter is freed.
func TestNoCounterLeaks(t *testing.T) {
	top, set := New(Options{PerRule: 5}), casetest.Compile(t, shop)
	rules, none := set.Domain("shop").Rules(), casetest.Compile(t, "domain: api\ndescriptors: [{key: a}]")
	top.Keep(set)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 2000 {
				hit(top, rules[rand.IntN(2)], strconv.Itoa(rand.IntN(100)), 1, rand.IntN(2) == 0)
				switch i % 200 {
				case 100:
					top.rotate(time.Now())
				case 150:
					top.Keep(none)
					top.Keep(set)
				}
			}
		})
	}
	wg.Wait()
	top.Keep(none)
	if top.free.Load() != maxCounters {
		t.Errorf("%d free counters of %d", top.free.Load(), maxCounters)
	}
}

// Memory has a bound, whatever comes: many rules, many keys of a rule, or keys as long as they may be.
func TestMemoryIsBounded(t *testing.T) {
	casetest.WithoutRace(t)
	if testing.Short() {
		t.Skip("notes 300,000 keys: left out by -short")
	}
	long := strings.Repeat("x", 200)
	for name, c := range map[string]struct {
		rules, keys int
		value       string
		most        uint64 // bytes
	}{
		"100,000 rules":      {100_000, 2, "", 40 << 20},
		"1,000 rules":        {1000, 60, "", 25 << 20},
		"keys that are long": {1000, 60, long, 45 << 20},
		"one rule":           {1, 20_000, long, 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			top, set := New(Options{PerRule: 100}), casetest.Compile(t, rulesFile(c.rules))
			rules := set.Domain("shop").Rules()
			before := heap()
			top.Keep(set)
			for i := range c.keys {
				if i == c.keys/2 {
					top.rotate(time.Now())
				}
				for _, r := range rules {
					hit(top, r, fmt.Sprint(c.value, i), 1, i%2 == 0)
				}
			}
			top.countAll()
			used := heap() - before
			t.Logf("%d counters, %.1f MB, missed %d hits", maxCounters-top.free.Load(), float64(used)/1e6, top.missed.Load())
			for _, r := range rulesOf(*top.live.Load()) {
				for _, h := range r.halves() {
					if h.hits.used > 100 || h.denied.used > 100 {
						t.Fatalf("%s has %d and %d counters, want at most 100", r.of.Path, h.hits.used, h.denied.used)
					}
				}
			}
			if used > c.most {
				t.Errorf("%d bytes, want at most %d", used, c.most)
			}
			runtime.KeepAlive(set)
		})
	}
}

// heap is the bytes that are in use.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
