package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/limitertest"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

func policy(tb testing.TB, in limiter.Params) *limiter.Policy {
	tb.Helper()
	in.DenyAll = in.Limit == 0 // a test means it
	p, err := limiter.NewPolicy(in)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// hit charges n to a key.
func hit(tb testing.TB, s *memstore.Store, key string, p *limiter.Policy, n int64) limiter.Decision {
	tb.Helper()
	var out [1]limiter.Decision
	if err := s.Take(tb.Context(), []limiter.Hit{{Key: key, Policy: p, N: n, Peek: n == 0}}, out[:]); err != nil {
		tb.Fatal(err)
	}
	return out[0]
}

// algorithms are policies that allow ten hits a minute, of each algorithm that does.
func algorithms(tb testing.TB) []*limiter.Policy {
	tb.Helper()
	var all []*limiter.Policy
	for _, a := range []limiter.Algorithm{
		limiter.FixedWindow, limiter.Funnel, limiter.TokenBucket, limiter.SlidingWindow, limiter.SlidingLog,
		limiter.Concurrency,
	} {
		all = append(all, policy(tb, limiter.Params{Algorithm: a, Limit: 10, Window: time.Minute}))
	}
	return all
}

func TestOptionsAreChecked(t *testing.T) {
	for _, c := range []struct {
		o    memstore.Options
		want string
	}{
		{memstore.Options{MaxCounters: -1}, "memory store: MaxCounters must not be negative, got -1"},
		{memstore.Options{SweepEvery: -time.Second}, "memory store: SweepEvery must not be negative, got -1s"},
	} {
		if _, err := memstore.New(c.o); err == nil || err.Error() != c.want {
			t.Errorf("New(%+v): %v, want %s", c.o, err, c.want)
		}
	}
}

// Time in these tests is synctest's: the store's own clock and its sweeper's ticker.
func TestSweepFreesWhatNoLongerMatters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, memstore.Options{SweepEvery: 28 * time.Second}) // one sweep frees all that has expired by then
		const perAlgorithm = 2000
		for _, p := range algorithms(t) {
			for i := range perAlgorithm {
				hit(t, s, fmt.Sprint(p.Algorithm(), i), p, 5)
			}
		}
		full := s.Stats()
		if want := len(algorithms(t)) * perAlgorithm; full.Counters != want || full.Expired != 0 {
			t.Fatalf("after %d keys were hit: %+v", want, full)
		}
		// A funnel that holds 5 hits of 10 a minute is empty after 30 s, and so is a bucket full.
		time.Sleep(29 * time.Second)
		synctest.Wait()
		for _, p := range algorithms(t)[1:] {
			if d := hit(t, s, fmt.Sprint(p.Algorithm(), 0), p, 0); d.ResetAfter == 0 {
				t.Errorf("%s: state was freed while it mattered: %+v", p.Algorithm(), d)
			}
		}
		time.Sleep(90 * time.Second)
		synctest.Wait()
		empty := s.Stats()
		if empty.Counters != 0 || empty.Expired != uint64(full.Counters) || empty.Evicted != 0 {
			t.Errorf("two minutes later: %+v, want no keys, all %d expired", empty, full.Counters)
		}
		if limit := int64(256 * 8 * 150); empty.Bytes > limit {
			t.Errorf("the empty store takes %d bytes, %d when full; want at most %d", empty.Bytes, full.Bytes, limit)
		}
	})
}

// A bucket that starts empty is kept while it is full, for as long as filling takes, and then freed.
func TestSweepKeepsABucketThatStartedEmpty(t *testing.T) {
	for name, atOnce := range map[string]bool{"greedy": false, "interval": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := start(t, memstore.Options{SweepEvery: time.Second})
				p := policy(t, limiter.Params{
					Algorithm: limiter.TokenBucket, Limit: 1, Window: time.Second, Burst: 30,
					StartsEmpty: true, RefillsAtOnce: atOnce,
				})
				for i := range 1000 {
					hit(t, s, strconv.Itoa(i), p, 1)
				}
				time.Sleep(59 * time.Second)
				synctest.Wait()
				if got := s.Stats(); got.Counters != 1000 {
					t.Errorf("after 59 s, 29 of them full: %+v, want all 1000 keys", got)
				}
				if d := hit(t, s, "0", p, 0); d.Remaining != 30 {
					t.Errorf("after 59 s: %+v, want all 30 tokens", d)
				}
				time.Sleep(10 * time.Second)
				synctest.Wait()
				if got := s.Stats(); got.Counters != 0 {
					t.Errorf("after 69 s: %+v, want no keys", got)
				}
			})
		})
	}
}

func TestRefundToEmptyFreesAtOnce(t *testing.T) {
	s := start(t, memstore.Options{Now: limitertest.NewClock().Now})
	for _, p := range algorithms(t) {
		hit(t, s, p.Algorithm().String(), p, 7)
		hit(t, s, p.Algorithm().String(), p, -7)
	}
	if got := s.Stats().Counters; got != 0 {
		t.Errorf("%d keys are held after all was refunded", got)
	}
}

func TestFullStoreStaysWithinItsBound(t *testing.T) {
	const maxCounters = 4_000
	for _, p := range algorithms(t) {
		t.Run(p.Algorithm().String(), func(t *testing.T) {
			s := start(t, memstore.Options{Now: limitertest.NewClock().Now, MaxCounters: maxCounters})
			var most int64
			for i := range 5 * maxCounters {
				hit(t, s, fmt.Sprint("fresh ", i), p, 1)
				if i%maxCounters == 0 {
					most = max(most, s.Stats().Bytes)
				}
			}
			got := s.Stats()
			if got.Counters > maxCounters+256 || got.Counters+int(got.Evicted) != 5*maxCounters {
				t.Errorf("after %d keys: %+v, want at most %d keys, and the others evicted", 5*maxCounters, got, maxCounters)
			}
			if most = max(most, got.Bytes); most > maxCounters*(64+16) {
				t.Errorf("took %d bytes, %d a key of MaxCounters", most, most/maxCounters)
			}
		})
	}
}

// Whoever is limited stays limited while he floods the store with fresh keys.
func TestFloodOfFreshKeysDoesNotResetALimitedOne(t *testing.T) {
	const maxCounters, limited = 2_000, 100
	for _, p := range append(algorithms(t),
		policy(t, limiter.Params{
			Algorithm: limiter.FixedWindow, Align: limiter.AlignFirstHit, Limit: 10, Window: time.Minute,
		}),
		policy(t, limiter.Params{Algorithm: limiter.FixedWindow, Limit: 2, Window: time.Minute}),
	) {
		t.Run(fmt.Sprint(p.Algorithm(), p.Limit()), func(t *testing.T) {
			clock := limitertest.NewClock()
			s := start(t, memstore.Options{Now: clock.Now, MaxCounters: maxCounters})
			for i := range limited {
				hits := []limiter.Hit{{Key: fmt.Sprint("limited ", i), Policy: p, N: p.Limit()}}
				if i%2 == 0 { // by the second of two hits
					hits[0].N--
					hits = append(hits, limiter.Hit{Key: hits[0].Key, Policy: p, N: 1})
				}
				if err := s.Take(t.Context(), hits, make([]limiter.Decision, len(hits))); err != nil {
					t.Fatal(err)
				}
			}
			clock.Advance(time.Second)
			for i := range 10 * maxCounters {
				hit(t, s, fmt.Sprint("fresh ", i), p, 1)
			}
			forgotten := 0
			for i := range limited {
				if hit(t, s, fmt.Sprint("limited ", i), p, 0).Remaining > 1 {
					forgotten++
				}
			}
			if forgotten > 0 {
				t.Errorf("%d of %d limited keys were forgotten: %+v", forgotten, limited, s.Stats())
			}
		})
	}
}

func TestEvictionPrefersTheExpired(t *testing.T) {
	clock := limitertest.NewClock()
	s := start(t, memstore.Options{Now: clock.Now, MaxCounters: 64, SweepEvery: time.Hour})
	short, long := funnel(t, time.Second), funnel(t, time.Hour)
	for i := range 64 {
		hit(t, s, fmt.Sprint("short ", i), short, 1)
	}
	clock.Advance(time.Minute)
	for i := range 32 {
		hit(t, s, fmt.Sprint("long ", i), long, 1)
	}
	if got := s.Stats(); got.Evicted != 0 || got.Expired < 32 || got.Counters != 96-int(got.Expired) {
		t.Errorf("32 keys after 64 that expired: %+v, want expired ones to make room and none evicted", got)
	}
}

// funnel is a policy of 10 hits at once, of which one leaks in each period.
func funnel(tb testing.TB, period time.Duration) *limiter.Policy {
	tb.Helper()
	return policy(tb, limiter.Params{Algorithm: limiter.Funnel, Limit: 1, Window: period, Burst: 10})
}

// A new key takes the place of another at once, also where it matters less than all others.
func TestFullStoreLimitsNewKeys(t *testing.T) {
	s := start(t, memstore.Options{Now: limitertest.NewClock().Now, MaxCounters: 64})
	for i := range 64 {
		hit(t, s, fmt.Sprint("long ", i), funnel(t, time.Hour), 1)
	}
	for i := range 100 {
		key := fmt.Sprint("short ", i)
		hit(t, s, key, funnel(t, time.Second), 4)
		if d := hit(t, s, key, funnel(t, time.Second), 4); d.Remaining != 2 {
			t.Fatalf("%s: %d remain of 10 after 8, of %+v", key, d.Remaining, s.Stats())
		}
	}
}

// A log that was long once and is short now returns its memory.
func TestShortLogTakesLittleMemory(t *testing.T) {
	clock := limitertest.NewClock()
	s := start(t, memstore.Options{Now: clock.Now, SweepEvery: time.Hour})
	p := policy(t, limiter.Params{Algorithm: limiter.SlidingLog, Limit: 10_000, Window: time.Minute})
	before := heap()
	for i := range 10_000 {
		if i == 5_000 {
			clock.Advance(30 * time.Second)
		}
		hit(t, s, "log", p, 1)
	}
	long, told := heap()-before, s.Stats().Bytes
	clock.Advance(31 * time.Second)
	hit(t, s, "log", p, 1)
	half := s.Stats().Bytes // those that are left stand at the end of the same array
	clock.Advance(31 * time.Second)
	hit(t, s, "log", p, 1)
	if short := heap() - before; long < 100_000 || min(told, half) < 160_000 || max(short, s.Stats().Bytes) > 10_000 {
		t.Errorf("a log of 10,000 hits takes %d bytes (%d by Stats, without the older half %d), later of two hits %d (%d)",
			long, told, half, short, s.Stats().Bytes)
	}
}

func TestMemoryIsReturnedAfterAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, memstore.Options{SweepEvery: time.Second})
		p := algorithms(t)[1]
		before := heap()
		for i := range 200_000 {
			hit(t, s, fmt.Sprint("flood ", i), p, 1)
		}
		during := heap() - before
		time.Sleep(time.Minute)
		synctest.Wait()
		after := heap() - before
		if during < 200_000*40 || after > during/10 {
			t.Errorf("heap: %d bytes during the flood, %d after it", during, after)
		}
		runtime.KeepAlive(s)
	})
}

// heap returns the size of the live heap in bytes.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestManyFunnelsTakeLittleMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("fills 250,000 keys")
	}
	keys := casetest.Pick[int64](250_000, 1_000_000) // both leave the tables as full
	before := heap()
	s := start(t, memstore.Options{Now: limitertest.NewClock().Now})
	p := algorithms(t)[1]
	var key []byte
	for i := range keys {
		key = fmt.Appendf(key[:0], "shop_remote_address_%d", i)
		hit(t, s, string(key), p, 1)
	}
	var m runtime.MemStats
	took := heap() - before
	runtime.ReadMemStats(&m)
	stats := s.Stats()
	t.Logf("%d keys: %d bytes a key on the heap (%d by Stats), HeapAlloc %d MB, HeapSys %d MB",
		stats.Counters, took/keys, stats.Bytes/keys, m.HeapAlloc>>20, m.HeapSys>>20)
	if int64(stats.Counters) != keys || stats.Evicted != 0 {
		t.Fatalf("%+v, want %d keys", stats, keys)
	}
	if took > 64*keys {
		t.Errorf("%d bytes a key, want at most 64", took/keys)
	}
	if m.HeapSys > 200<<20 {
		t.Errorf("the process's heap is %d MB, want less than 200", m.HeapSys>>20)
	}
	if told := stats.Bytes; told < took*9/10 || told > took*11/10 {
		t.Errorf("Stats tells %d bytes, the heap %d", told, took)
	}
}

func TestTakeDoesNotAllocate(t *testing.T) {
	s := start(t, memstore.Options{})
	ctx := context.Background()
	for _, p := range algorithms(t)[:3] {
		for _, n := range []int{1, 2, 8} {
			hits, out := make([]limiter.Hit, n), make([]limiter.Decision, n)
			for i := range hits {
				hits[i] = limiter.Hit{Key: fmt.Sprint(p.Algorithm(), n, i), Policy: p, N: 1}
			}
			err := errors.New("not run")
			if got := testing.AllocsPerRun(200, func() { err = s.Take(ctx, hits, out) }); got != 0 || err != nil {
				t.Errorf("%s, %d hits: %g allocations a Take, error %v", p.Algorithm(), n, got, err)
			}
		}
	}
}

func TestStoreAnswersAfterClose(t *testing.T) {
	s, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if d := hit(t, s, "k", algorithms(t)[0], 1); !d.Allowed {
		t.Errorf("got %+v", d)
	}
}

// Under a rule that leaves nothing after one hit, such as 1 a day per value, each key of a flood looks as limited as
// the client's own counter. But only the client's own counter has denied a hit.
func TestFloodOfKeysWithNothingLeftDoesNotResetWhatHasDenied(t *testing.T) {
	const maxCounters, own = 400, 40
	for _, a := range []limiter.Algorithm{
		limiter.FixedWindow, limiter.Funnel, limiter.TokenBucket, limiter.SlidingWindow, limiter.SlidingLog,
		limiter.Concurrency,
	} {
		for _, charge := range []limiter.ChargeDenied{limiter.ChargeNone, limiter.ChargeFull} {
			for _, limit := range []int64{1, 10} {
				t.Run(fmt.Sprint(a, charge, limit), func(t *testing.T) {
					clock := limitertest.NewClock()
					s := start(t, memstore.Options{Now: clock.Now, MaxCounters: maxCounters})
					day := func(limit int64) *limiter.Policy {
						return policy(t, limiter.Params{Algorithm: a, Limit: limit, Window: 24 * time.Hour, ChargeDenied: charge})
					}
					mine, fresh := day(limit), day(1)
					if w := mine.Window() / 24; a == limiter.SlidingWindow || a == limiter.SlidingLog || a == limiter.Concurrency {
						clock.Advance(w) // their counters take more room, and so are fewer
					}
					keys := own
					if a != limiter.FixedWindow && a != limiter.Funnel && a != limiter.TokenBucket {
						keys = own / 4
					}
					for i := range keys {
						for range limit {
							hit(t, s, fmt.Sprint("mine ", i), mine, 1)
						}
						if d := hit(t, s, fmt.Sprint("mine ", i), mine, 1); d.Allowed {
							t.Fatalf("key %d is not limited: %+v", i, d)
						}
					}
					for i := range 10 * maxCounters {
						hit(t, s, fmt.Sprint("fresh ", i), fresh, 1)
					}
					admitted := 0
					for i := range keys {
						if hit(t, s, fmt.Sprint("mine ", i), mine, 1).Allowed {
							admitted++
						}
					}
					if admitted > 0 {
						t.Errorf("the flood let %d of %d pass that were limited: %+v", admitted, keys, s.Stats())
					}
				})
			}
		}
	}
}

// A limited client gains nothing by other keys that are denied as well, or that matter for longer. A key that arrives
// when no further counter can be kept is limited like any other.
func TestFloodOfDeniedKeysDoesNotResetALimitedOne(t *testing.T) {
	const maxCounters, own, limit = 400, 20, 5
	for _, p := range algorithms(t) {
		for _, denied := range []bool{true, false} {
			t.Run(fmt.Sprint(p.Algorithm(), denied), func(t *testing.T) {
				s := start(t, memstore.Options{Now: limitertest.NewClock().Now, MaxCounters: maxCounters})
				per := func(window time.Duration) *limiter.Policy {
					return policy(t, limiter.Params{Algorithm: p.Algorithm(), Limit: limit, Window: window})
				}
				for i := range own {
					for range limit {
						hit(t, s, fmt.Sprint("mine ", i), per(24*time.Hour), 1)
					}
					if denied {
						hit(t, s, fmt.Sprint("mine ", i), per(24*time.Hour), 1)
					}
				}
				for i := range 5 * maxCounters {
					key, passed := fmt.Sprint("fresh ", i), 0
					for range limit + 1 {
						if hit(t, s, key, per(365*24*time.Hour), 1).Allowed {
							passed++
						}
					}
					if passed != limit {
						t.Fatalf("%d hits of %s passed, want %d: %+v", passed, key, limit, s.Stats())
					}
				}
				for i := range own {
					if d := hit(t, s, fmt.Sprint("mine ", i), per(24*time.Hour), 1); d.Allowed {
						t.Errorf("the flood let key %d pass that was limited: %+v", i, s.Stats())
					}
				}
				if got := s.Stats(); got.LimitingEvicted == 0 || got.LimitingEvicted > got.Evicted {
					t.Errorf("%+v: the metric does not say that counters were dropped that limit somebody", got)
				}
			})
		}
	}
}

// A counter that denied no one is worth less again once its state has expired.
func TestWorthEndsWithTheState(t *testing.T) {
	clock := limitertest.NewClock()
	s := start(t, memstore.Options{Now: clock.Now, MaxCounters: 64, SweepEvery: time.Hour})
	p := policy(t, limiter.Params{Algorithm: limiter.FixedWindow, Limit: 5, Window: time.Minute})
	for range 7 {
		hit(t, s, "mine", p, 1)
	}
	clock.Advance(2 * time.Minute)
	hit(t, s, "mine", p, 1) // a new window
	clock.Advance(time.Second)
	hour := policy(t, limiter.Params{Algorithm: limiter.FixedWindow, Limit: 5, Window: time.Hour})
	for i := range 1_000 {
		hit(t, s, fmt.Sprint("other ", i), hour, 1)
	}
	if d := hit(t, s, "mine", p, 0); d.Remaining != 5 {
		t.Errorf("%+v: kept although it is worth less than the others", d)
	}
}

// A state that another algorithm left under the key is none, and its shard goes on.
func TestAnotherAlgorithmStartsAgain(t *testing.T) {
	s := start(t, memstore.Options{Now: limitertest.NewClock().Now, MaxCounters: 64})
	all := []limiter.Algorithm{limiter.SlidingWindow, limiter.SlidingLog, limiter.Concurrency, limiter.SmoothWarmingUp}
	for _, from := range all {
		for _, to := range all {
			key := fmt.Sprint(from, to)
			hit(t, s, key, policy(t, limiter.Params{Algorithm: from, Limit: 5, Window: time.Minute, Segments: odd(from)}), 3)
			p := policy(t, limiter.Params{Algorithm: to, Limit: 5, Window: time.Minute, Segments: odd(to)})
			got, want := hit(t, s, key, p, 1), hit(t, s, key+" fresh", p, 1)
			if from != to && got != want {
				t.Errorf("%s after %s: %+v, want %+v as a fresh one", to, from, got, want)
			}
		}
	}
}

// odd returns a number of segments that makes a list of odd length, or 0 for algorithms without segments.
func odd(a limiter.Algorithm) int64 {
	if a == limiter.SlidingWindow {
		return 10
	}
	return 0
}
