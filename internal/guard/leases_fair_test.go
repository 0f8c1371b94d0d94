package guard_test

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// If a greedy process has permits on lease and others have used up the rest, they get the permits that it does not
// spend after one lease. It does not acquire them again in the call that releases them, although its last Remaining was
// larger.
func TestGreedGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := hourly(t, 1000)
		f := newFleet(t, 10, p, leaseFor, 0)
		for i := 0; i < 500 && settled(f.replicas[0]).Permits < 95; i++ {
			take(t, f.replicas[0], limiter.Hit{Key: "k", Policy: p, Route: onLease, N: 1})
		}
		held := settled(f.replicas[0]).Permits
		if held < 95 {
			t.Fatalf("the greedy replica has %d on lease: too few to tell", held)
		}
		left := take(t, f.store, limiter.Hit{Key: "k", Policy: p, Route: onLease, Peek: true})[0].Remaining
		take(t, f.store, limiter.Hit{Key: "k", Policy: p, Route: onLease, N: left - 9})
		const step = leaseFor/50 + time.Microsecond
		start := time.Now()
		for i := 0; !take(t, f.replicas[1+i%9], limiter.Hit{Key: "k", Policy: p, Route: onLease, N: 10})[0].Allowed; i++ {
			time.Sleep(step)
			if time.Since(start) > leaseFor+step {
				t.Fatalf("the others got nothing for a lease, %s, while a greedy replica had %d permits", leaseFor, held)
			}
		}
	})
}

// Permits on lease elsewhere deny requests for at most one lease: then the store has had room for some request, or the
// permits were spent. Traffic is random: a greedy replica sends bursts of up to 100 times as much as each of nine
// modest ones, and some large requests use up the rest.
func TestNobodyStarves(t *testing.T) {
	first := casetest.Pick[uint64](2, 0)
	for _, a := range leasable {
		t.Run(a.String(), func(t *testing.T) {
			longest := 0.0
			for seed := first; seed < casetest.Pick[uint64](4, 6); seed++ {
				r := rand.New(rand.NewPCG(seed, 0))
				p := leased(t, limiter.Params{
					Algorithm: a, Oldest: oldest(a),
					Limit: []int64{100, 1000, 3000}[r.IntN(3)], Window: []time.Duration{time.Second, time.Hour}[r.IntN(2)],
				})
				lease := []time.Duration{10 * time.Millisecond, 50 * time.Millisecond, 200 * time.Millisecond}[r.IntN(3)]
				var starved time.Duration
				synctest.Test(t, func(t *testing.T) {
					starved = newFleet(t, 10, p, lease, 0).starved(t, r,
						100*time.Millisecond+2*lease)
				})
				longest = max(longest, starved.Seconds()/lease.Seconds())
				if starved > lease {
					t.Errorf("seed %d, %d per %s: for %s the store denied all while permits were on lease, want at most %s",
						seed, p.Limit(), p.Window(), starved, lease)
				}
			}
			t.Logf("at most %.2f leases", longest)
			if longest < 0.3 {
				t.Errorf("at most %.2f leases: nobody was denied for what lay elsewhere, so nothing is told", longest)
			}
		})
	}
}

// starved plays bursts of the first replica beside steady traffic of the others. It returns the longest time in which
// permits were on lease while the store denied all requests.
func (f *fleet) starved(t *testing.T, r *rand.Rand, long time.Duration) (longest time.Duration) {
	t.Helper()
	start, since, starving := time.Now(), time.Time{}, false
	greed, until := 0, start
	for time.Since(start) < long {
		if time.Now().After(until) { // a new burst, or a pause
			greed, until = r.IntN(2)*r.IntN(100), time.Now().Add(time.Duration(r.Int64N(3*int64(f.route))))
			if r.IntN(3) == 0 { // one large request uses up what is left
				left := take(t, f.store, limiter.Hit{Key: "k", Policy: f.policy, Route: f.route, Peek: true})[0].Remaining
				take(t, f.store, limiter.Hit{Key: "k", Policy: f.policy, Route: f.route, N: left, Peek: left == 0})
			}
		}
		by := f.replicas[0]
		if r.IntN(9+greed) < 9 {
			by = f.replicas[1+r.IntN(9)]
		}
		here := uint64(0)
		if starving {
			here = settled(by).Answers
		}
		allowed := take(t, by, limiter.Hit{Key: "k", Policy: f.policy, Route: f.route, N: 1})[0].Allowed
		synctest.Wait()
		if starving {
			byStore := by.Stats().Answers == here
			starving = (!allowed || !byStore) && f.anyOnLease()
		} else if !allowed && f.anyOnLease() {
			starving, since = true, time.Now()
		}
		if starving {
			longest = max(longest, time.Since(since))
		}
		pause := 3000 / float64(9+greed) // us: each of the others asks about once in 3 ms
		time.Sleep(time.Duration(1+r.ExpFloat64()*pause) * time.Microsecond)
	}
	return longest
}
