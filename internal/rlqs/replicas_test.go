package rlqs

import (
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/longtest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// replicas are keepers with one store, each with Envoys of its own.
type replicas struct {
	t      *testing.T
	store  *ledger
	policy *limiter.Policy
	began  time.Time
	all    []*fleet
}

// inReplicas runs f in virtual time, on a store that answers after up to 6 ms.
func inReplicas(t *testing.T, p *limiter.Policy, f func(r *replicas)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &replicas{t: t, store: newLedger(t), policy: p, began: time.Now()}
		r.store.late = lateUpTo(3 * time.Millisecond)
		f(r)
		for len(r.all) > 0 {
			r.stop()
		}
		if err := r.store.Close(); err != nil {
			t.Error(err)
		}
	})
}

// start begins a keeper whose Envoys want that many requests a second.
func (r *replicas) start(wants ...float64) {
	f := newFleet(r.t, r.store, one(r.policy), len(wants))
	for i, want := range wants {
		f.envoys[i].demand["b"] = steady(want)
	}
	f.start = r.began // one clock, so that Envoys can go from one to another
	r.all = append(r.all, f)
}

// kill ends the oldest keeper. Its Envoys go on with what they have, and come to the next keeper with their next
// report.
func (r *replicas) kill() {
	gone := r.all[0]
	r.all = r.all[1:]
	gone.cancel()
	<-gone.stopped
	for _, e := range gone.envoys {
		e.fleet, e.stream, e.inbox = r.all[0], nil, nil
	}
	r.all[0].envoys = append(r.all[0].envoys, gone.envoys...)
}

// stop ends the newest keeper, and its Envoys with it.
func (r *replicas) stop() {
	f := r.all[len(r.all)-1]
	r.all = r.all[:len(r.all)-1]
	f.cancel()
	<-f.stopped
}

// play returns how many requests a second passed by each keeper, and by all.
func (r *replicas) play(long time.Duration) (passed []float64, sum float64) {
	before := make([]int64, len(r.all))
	for i, f := range r.all {
		before[i] = f.passed
	}
	for range int(long / playStep) {
		time.Sleep(playStep)
		for _, f := range r.all {
			for _, e := range f.envoys {
				e.advance(f.now(), playStep)
			}
		}
		synctest.Wait()
	}
	for i, f := range r.all {
		passed = append(passed, float64(f.passed-before[i])/long.Seconds())
		sum += passed[i]
	}
	return passed, sum
}

// Replicas that overload a limit of 1,000 a second use all of it and divide it by demand, whenever each one charges.
func TestReplicasDivideByDemand(t *testing.T) {
	longtest.WithoutRace(t)
	for name, wants := range map[string][][]float64{
		"1:1":          {{400, 400, 400}, {400, 400, 400}},
		"1:3":          {{400}, {400, 400, 400}},
		"1:3 of Envoy": {{200, 200}, {600, 400, 200}},
		"0:1":          {{0, 0}, {600, 600}},
		"1:1:1":        {{400, 400}, {400, 400}, {400, 400}},
		"1:2:3":        {{300}, {300, 300}, {300, 600}},
	} {
		t.Run(name, func(t *testing.T) {
			total := 0.0
			for _, w := range slices.Concat(wants...) {
				total += w
			}
			for i := range 10 {
				a, phase := algorithms[i%len(algorithms)], time.Duration(i)*tick/10
				inReplicas(t, perSecond(t, a, 1000), func(r *replicas) {
					for i, w := range wants {
						if i > 0 {
							time.Sleep(phase)
						}
						r.start(w...)
					}
					r.play(20 * time.Second)
					passed, sum := r.play(20 * time.Second)
					t.Logf("%s, %s between ticks: %.0f of 1,000 a second passed, %.0f", a, phase, sum, passed)
					if sum < 950 || sum > 1050 { // with what one burst of 1,000 adds to 20 s
						t.Errorf("%s, %s between ticks: %.0f of 1,000 a second passed, want at least 950", a, phase, sum)
					}
					for i, w := range wants {
						want := 0.0
						for _, w := range w {
							want += w / total * 1000
						}
						if math.Abs(passed[i]-want) > want/5 {
							t.Errorf("%s, %s between ticks: %.0f a second passed by one of them, want %.0f", a, phase, passed[i], want)
						}
					}
				})
			}
		})
	}
}

// A replica that comes gets its part, one that goes leaves its part to the others, and an Envoy that is new has some of
// what nobody wants.
func TestReplicasComeAndGo(t *testing.T) {
	for _, a := range algorithms {
		inReplicas(t, perSecond(t, a, 1000), func(r *replicas) {
			r.start(400, 400)
			time.Sleep(37 * time.Millisecond)
			r.start(400, 400)
			r.play(20 * time.Second)
			time.Sleep(29 * time.Millisecond)
			r.start(400, 400)
			r.play(10 * time.Second)
			three, sum := r.play(20 * time.Second)
			if sum < 950 || sum > 1050 || slices.Min(three) < 310 {
				t.Errorf("%s: %.0f a second passed by three replicas", a, three)
			}
			r.stop()
			r.play(10 * time.Second)
			two, sum := r.play(20 * time.Second)
			if sum < 950 || sum > 1050 || slices.Min(two) < 460 {
				t.Errorf("%s: %.0f a second passed by the two that are left", a, two)
			}
			for _, f := range r.all {
				for _, e := range f.envoys {
					e.demand["b"] = steady(150)
				}
			}
			r.play(20 * time.Second)
			r.start(300)
			if all, _ := r.play(5 * time.Second); all[2] < 200 {
				t.Errorf("%s: %.0f a second passed by an Envoy in its first 5 s, while 400 of the limit were left", a, all[2])
			}
		})
	}
}

// The Envoys of a replica that is killed go on with what they have, and come to another one within 5 s. Until then it
// leaves them their part, and from then on they get it.
func TestReplicaIsKilled(t *testing.T) {
	for _, a := range algorithms {
		for _, phase := range []time.Duration{0, 1500 * time.Millisecond, 3 * time.Second, 4500 * time.Millisecond} {
			inReplicas(t, perSecond(t, a, 1000), func(r *replicas) {
				r.start(400, 400, 400)
				time.Sleep(37 * time.Millisecond)
				r.start(400, 400, 400)
				r.play(20*time.Second + phase)
				r.kill()
				var halves []float64
				all := 0.0
				for range 20 {
					_, sum := r.play(500 * time.Millisecond)
					halves, all = append(halves, sum), all+sum/20
				}
				least := 450.0
				if !r.policy.CountsInWindows() && isWindow(r.policy) { // what the other one charged last is still in it
					least = 400
				}
				if all < 860 || all > 1020 || slices.Max(halves) > 1100 || slices.Min(halves) < least {
					t.Errorf("%s, killed %s after a report: of 1,000 a second passed %.0f, in each half second %.0f", a, phase, all, halves)
				}
			})
		}
	}
}

// Replicas whose Envoys want less than the limit together take nothing from each other to have some spare.
func TestReplicasBelowTheLimit(t *testing.T) {
	longtest.WithoutRace(t)
	for name, wants := range map[string][]float64{
		"alike":     slices.Repeat([]float64{35}, 20),
		"two large": append([]float64{300, 300}, slices.Repeat([]float64{5}, 18)...),
	} {
		for _, a := range algorithms {
			inReplicas(t, perSecond(t, a, 1000), func(r *replicas) {
				for _, w := range wants {
					time.Sleep(13 * time.Millisecond)
					r.start(w)
				}
				r.play(20 * time.Second)
				if _, sum := r.play(20 * time.Second); sum < 680 {
					t.Errorf("%s, %s: %.0f requests a second passed of 700 that 20 replicas were asked for", name, a, sum)
				}
			})
		}
	}
}

// A stream that broke is charged for as long as its assignment lasts. The other replica's Envoys lose nothing by it.
func TestReplicasWithABrokenStream(t *testing.T) {
	for _, a := range []limiter.Algorithm{limiter.Funnel, limiter.SlidingLog} {
		for phase := time.Duration(0); phase < tick; phase += tick / 10 {
			inReplicas(t, perSecond(t, a, 1000), func(r *replicas) {
				r.start(1500)
				time.Sleep(phase)
				r.start(1500)
				r.play(20 * time.Second)
				r.all[0].unreachable = true
				r.all[0].envoys[0].disconnect()
				broken, sum := r.play(8 * time.Second)
				if sum < 850 || sum > 1050 || slices.Min(broken) < 350 { // it depends on who charges first
					t.Errorf("%s, %s between ticks: %.0f a second passed while a stream was broken", a, phase, broken)
				}
			})
		}
	}
}
