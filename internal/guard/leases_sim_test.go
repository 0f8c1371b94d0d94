package guard_test

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// fleet is several processes with one store, in virtual time.
type fleet struct {
	store    *far
	delay    time.Duration
	replicas []guard.LeasesStore
	policy   *limiter.Policy
	route    leaseRoute

	mu       sync.Mutex
	admitted []admission // in the order of their time
}

// admission is n admitted hits, and the permits that were on lease in all processes just before.
type admission struct {
	at      time.Duration
	replica int
	n       int64
	leased  int64
}

// newFleet returns processes whose calls take delay until the store decides, and once more until they return.
func newFleet(t *testing.T, replicas int, p *limiter.Policy, lease, delay time.Duration) *fleet {
	t.Helper()
	f := &fleet{store: newFar(t), delay: delay, policy: p, route: leaseRoute(lease)}
	f.store.set(func(n *network) { n.delay, n.late = delay, delay })
	for range replicas {
		f.replicas = append(f.replicas, newLeases(t, f.store))
	}
	return f
}

// onLease returns the number of permits on lease in all processes.
func (f *fleet) onLease() (n int64) {
	for _, r := range f.replicas {
		n += r.Stats().Permits
	}
	return n
}

// anyOnLease reports whether there are permits on lease, faster than onLease.
func (f *fleet) anyOnLease() bool {
	return slices.ContainsFunc(f.replicas, func(r guard.LeasesStore) bool { return r.Stats().Permits > 0 })
}

// checkShares checks that no process has more permits on lease than its share, including spent permits whose requests
// the store still decides.
func (f *fleet) checkShares(t *testing.T) {
	t.Helper()
	share := f.policy.Capacity() / guard.LeaseShare
	for i, r := range f.replicas {
		if n := r.Stats().Permits; n < 0 || n > share {
			t.Errorf("process %d has %d permits on lease, want at most its share of %d", i, n, share)
		}
	}
}

// ask lets a replica decide n hits, without waiting for the result.
func (f *fleet) ask(t *testing.T, wg *sync.WaitGroup, start time.Time, replica int, n int64) {
	t.Helper()
	do := func() {
		before := f.onLease()
		f.checkShares(t)
		if !take(t, f.replicas[replica], limiter.Hit{
			Key: "k", Policy: f.policy, Route: f.route, N: n,
			Peek: n == 0,
		})[0].Allowed {
			return
		}
		f.mu.Lock()
		f.admitted = append(f.admitted, admission{time.Since(start), replica, n, before})
		f.mu.Unlock()
	}
	if f.delay == 0 {
		do()
		return
	}
	wg.Go(do)
}

// most returns the maximum number of admitted hits in a window, and the maximum less the permits on lease at its start.
func (f *fleet) most(window time.Duration) (passed, above int64) {
	n, end := int64(0), 0
	for _, from := range f.admitted {
		for ; end < len(f.admitted) && f.admitted[end].at < from.at+window; end++ {
			n += f.admitted[end].n
		}
		passed, above = max(passed, n), max(above, n-from.leased)
		n -= from.n
	}
	return passed, above
}

// In any window, ten processes admit at most as many hits as one store, plus the permits on lease when the window
// began, also if the store is 150 ms away. Traffic is random: replicas differ, busy times follow idle ones, and costs
// differ.
func TestBound(t *testing.T) {
	for _, a := range leasable {
		t.Run(a.String(), func(t *testing.T) {
			used, over := 0, int64(0)
			casetest.Check(t, 8, func(rt *rapid.T) {
				const ms = time.Millisecond
				times := rapid.SampledFrom([]struct{ window, lease, delay time.Duration }{
					{time.Second, 10 * ms, 0},
					{time.Second, 50 * ms, ms},
					{time.Second, 200 * ms, 0},
					{time.Second, 200 * ms, ms},
					{10 * time.Minute, time.Minute, 75 * ms},
				}).Draw(rt, "times")
				p := leased(t, limiter.Params{
					Algorithm: a, Window: times.window, Oldest: oldest(a),
					Limit: rapid.SampledFrom([]int64{20, 100, 300}).Draw(rt, "limit"),
				})
				seed := rapid.Uint64().Draw(rt, "seed")
				var f *fleet
				synctest.Test(t, func(t *testing.T) {
					f = newFleet(t, 10, p, times.lease, times.delay)
					f.play(t, rand.New(rand.NewPCG(seed, 0)), times.window*3/2)
					for _, r := range f.replicas {
						used += int(r.Stats().Answers)
					}
				})
				bound := limit.Bound(p, 1)
				passed, above := f.most(p.Window())
				if share := p.Capacity() / guard.LeaseShare; passed > bound+10*share {
					rt.Fatalf("%d passed in a window, want at most %d and a share of %d for each replica", passed, bound, share)
				}
				if times.delay == 0 && above > bound {
					rt.Fatalf("%d passed in a window besides those that were on lease when it began, want at most %d", above, bound)
				}
				over = max(over, passed-bound)
			})
			t.Logf("%d requests were decided locally, the most above the store's own bound was %d", used, over)
			if used < 100 && !testing.Short() { // which tries a fifth
				t.Error("too few requests were decided locally to tell")
			}
		})
	}
}

// oldest is the form of a sliding window that is never exceeded.
func oldest(a limiter.Algorithm) limiter.Oldest {
	if a == limiter.SlidingWindow {
		return limiter.OldestFull
	}
	return limiter.OldestProportional
}

// play sends random requests for this time.
func (f *fleet) play(t *testing.T, r *rand.Rand, long time.Duration) {
	t.Helper()
	start, window := time.Now(), f.policy.Window()
	var wg sync.WaitGroup
	weights := make([]int, len(f.replicas))
	for time.Since(start) < long {
		for i := range weights { // a new phase
			weights[i] = r.IntN(10)
			if r.IntN(4) == 0 {
				weights[i] *= 20
			}
		}
		load := []float64{0, 0.1, 0.5, 1, 3}[r.IntN(5)] * float64(f.policy.Limit())
		until := min(long, time.Since(start)+time.Duration(20+r.IntN(400))*window/1000)
		if load == 0 {
			time.Sleep(until - time.Since(start))
			continue
		}
		for time.Since(start) < until {
			pause := r.ExpFloat64() / load * float64(window.Microseconds())
			time.Sleep(time.Duration(1+pause) * time.Microsecond) // as coarse as the store's clock
			f.ask(t, &wg, start, weighted(r, weights), 1+int64(r.IntN(8)/7))
		}
	}
	wg.Wait()
}

func weighted(r *rand.Rand, weights []int) int {
	sum := 1
	for _, w := range weights {
		sum += w
	}
	at := r.IntN(sum)
	for i, w := range weights {
		if at -= w; at < 0 {
			return i
		}
	}
	return len(weights) - 1
}
