package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// rulesFile is a domain of n rules, by exact value and by pattern in turns.
func rulesFile(n int) []byte {
	var b strings.Builder
	b.WriteString("domain: growth\ndescriptors:\n")
	for i := range n {
		key, value := "exact", fmt.Sprintf("value%06d", i)
		if i%2 == 1 {
			key, value = "pattern", fmt.Sprintf("/path/%06d/*", i)
		}
		fmt.Fprintf(&b, "  - {key: %s, value: %s, rate_limit: {requests_per_unit: 10, unit: second}}\n", key, value)
	}
	return []byte(b.String())
}

// matching measures compiling and matching in this process.
func (g *growth) matching(context.Context) error {
	f := &figure{
		Name: "match", Title: "Matching one descriptor", Size: "rules", Sizes: tens(min(g.largest, 100_000)),
	}
	g.begin(f)
	f.add("exact value, ns", 0)
	f.add("pattern, ns", 0)
	f.add("one rule again and again, ns", 0)
	f.add("allocations", 0)
	f.add("load, ms", 1)
	for _, n := range f.Sizes {
		file := []rulefile.File{{Name: "rules.yaml", Data: rulesFile(n)}}
		var took []float64
		var set *descriptors.Set
		for range g.Rounds {
			runtime.GC()
			start := time.Now()
			var err error
			if set, err = rulefile.Compile(file); err != nil {
				return err
			}
			took = append(took, micros(time.Since(start))/1000)
		}
		domain, rng := set.Domain("growth"), rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same in every run
		asked := make([][]descriptors.Entry, 1024)
		for i := range asked {
			k := rng.IntN(n)
			asked[i] = []descriptors.Entry{{Key: "exact", Value: fmt.Sprintf("value%06d", k&^1)}}
			if i%2 == 1 {
				asked[i] = []descriptors.Entry{{Key: "pattern", Value: fmt.Sprintf("/path/%06d/items", k|1)}}
			}
		}
		match := func(i int) { domain.Match(asked[i%len(asked)]) }
		f.put(0, each(g.Rounds, func(i int) { match(2 * i) }))
		f.put(1, each(g.Rounds, func(i int) { match(2*i + 1) }))
		f.put(2, each(g.Rounds, func(int) { match(0) }))
		before := allocations()
		each(1, match)
		f.put(3, math.Floor(float64(allocations()-before)/repeats))
		f.put(4, median(took))
		fmt.Fprintf(g.progress, "match %d rules\n", n)
	}
	return nil
}

// repeats is how often something short is done to be timed.
const repeats = 300_000

// each is the time of one do, in nanoseconds: the median of rounds.
func each(rounds int, do func(i int)) float64 {
	all := make([]float64, rounds)
	for r := range all {
		start := time.Now()
		for i := range repeats {
			do(i)
		}
		all[r] = float64(time.Since(start).Nanoseconds()) / repeats
	}
	return median(all)
}

// allocations is how many objects this process has allocated.
func allocations() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:objects"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// names are the keys of counters, in one piece of memory that the garbage collector need not look into.
type names string

const nameLength = 16

func newNames(n int) names {
	var b strings.Builder
	b.Grow(n * nameLength)
	for i := range n {
		fmt.Fprintf(&b, "address=%08d", i)
	}
	return names(b.String())
}

func (n names) at(i int) string { return string(n[i*nameLength : (i+1)*nameLength]) }

// memory measures the memory store in this process, and how it lets go of what has expired.
func (g *growth) memory(context.Context) error {
	f := &figure{
		Name: "memory", Title: "Memory store: one hit", Size: "keys", Sizes: tens(g.largest),
	}
	g.begin(f)
	f.add("random key, ns", 0)
	f.add("one key again and again, ns", 0)
	f.add("allocations a hit", 0)
	f.add("heap bytes per key", 0)
	f.add("longest GC pause, us", 0)
	policy, err := limiter.NewPolicy(
		limiter.Params{Algorithm: limiter.Funnel, Limit: 1_000_000, Window: time.Hour, Burst: 1_000_000})
	if err != nil {
		return err
	}
	defer debug.SetGCPercent(debug.SetGCPercent(100)) // as a program has it that sets nothing
	for _, n := range f.Sizes {
		if err := g.keysInMemory(f, policy, n); err != nil { //nolint:contextcheck // Close ends the store
			return err
		}
		fmt.Fprintf(g.progress, "memory %d keys\n", n)
	}
	return nil
}

func (g *growth) keysInMemory(f *figure, policy *limiter.Policy, n int) error {
	all := newNames(n)
	empty := heap()
	pauses := gcPauses()
	var skipped atomic.Int64 // what the clock was moved on by
	start := time.Now()
	now := func() int64 { return time.Since(start).Microseconds() + skipped.Load() }
	// Room for more than n: evictions begin a few percent below the bound.
	s, err := memstore.New(memstore.Options{
		MaxKeys: n + n/4 + 1000, Now: now, SweepEvery: 100 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	defer s.Close()
	// So much that none expires for half an hour.
	hits, out := []limiter.Hit{{Policy: policy, N: 500_000}}, make([]limiter.Decision, 1)
	take := func(i int) {
		hits[0].Key = all.at(i)
		_ = s.Take(context.Background(), hits, out) // memory's is always nil
	}
	for i := range n {
		take(i)
	}
	perKey := float64(unknown)
	if after := heap(); n >= 10_000 { // below, it is lost among what else moves
		perKey = float64(after-empty) / float64(n)
	}
	hits[0].N = 1
	rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same in every run
	random := each(g.Rounds, func(int) { take(rng.IntN(n)) })
	same := each(g.Rounds, func(int) { take(0) })
	before := allocations()
	each(1, func(int) { take(rng.IntN(n)) })
	f.put(0, random)
	f.put(1, same)
	f.put(2, math.Floor(float64(allocations()-before)/repeats))
	f.put(3, perKey)
	runtime.GC()
	f.put(4, longestSince(pauses)*1e6)
	if n == g.largest {
		g.expire(s, &skipped, take, n)
	}
	return nil
}

// expire has all keys expire at one moment, and looks at the answers while they are swept.
func (g *growth) expire(s *memstore.Store, skipped *atomic.Int64, take func(int), n int) {
	rng := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // the same in every run
	var h histogram
	one := func() {
		start := time.Now()
		take(rng.IntN(min(n, 1000))) // few keys, so that the others go
		h.add(time.Since(start))
	}
	skipped.Store((2 * time.Hour).Microseconds())
	start := time.Now()
	for asked := 0; asked%1024 != 0 || s.Stats().Keys > min(n, 1000); asked++ {
		one()
	}
	took, during := time.Since(start), h
	h = histogram{}
	for end := time.Now().Add(took); time.Now().Before(end); {
		one()
	}
	g.note(
		"expiry",
		"Expiry of %s keys at one moment: swept in %.1f s, while a thread took hits all the time: "+
			"p99.99 %.0f us, longest %.1f ms; "+
			"in as long a time without anything to sweep: p99.99 %.0f us, longest %.1f ms.",
		thousands(n),
		took.Seconds(),
		micros(during.quantile(0.9999)),
		micros(during.quantile(1))/1000,
		micros(h.quantile(0.9999)),
		micros(h.quantile(1))/1000,
	)
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // bytes of memory
}

// gcPauses counts the pauses so far, by length.
func gcPauses() *metrics.Float64Histogram {
	s := []metrics.Sample{{Name: "/sched/pauses/total/gc:seconds"}}
	metrics.Read(s)
	return s[0].Value.Float64Histogram()
}

// longestSince is the upper bound of the longest pause since then, in seconds.
func longestSince(before *metrics.Float64Histogram) float64 {
	after := gcPauses()
	for i, n := range slices.Backward(after.Counts) {
		if n > before.Counts[i] {
			return after.Buckets[i+1]
		}
	}
	return 0
}
