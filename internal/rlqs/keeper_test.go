package rlqs

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// shared is one token bucket that all Envoys would share.
type shared struct {
	rate, capacity, tokens, passed float64
}

func (b *shared) offer(n float64, since time.Duration) {
	b.tokens = min(b.capacity, b.tokens+b.rate*since.Seconds())
	n = min(n, b.tokens)
	b.tokens -= n
	b.passed += n
}

// scenario returns the demand of an Envoy in requests per second.
type scenario func(envoy int, at time.Duration) float64

var scenarios = map[string]struct {
	demand scenario
	least  float64
}{
	"the hot spot moves": {func(i int, at time.Duration) float64 {
		if int(at/(20*time.Second))%10 == i {
			return 640
		}
		return 40
	}, .8},
	"uneven and over": {func(i int, _ time.Duration) float64 {
		return []float64{700, 400, 200, 100, 50, 50, 20, 20, 10, 10}[i]
	}, .95},
	"flash": {func(i int, at time.Duration) float64 {
		if i == 3 && at%(60*time.Second) >= 30*time.Second {
			return 5000
		}
		return 60
	}, .95},
	"all over": {func(int, time.Duration) float64 { return 400 }, .95},
	"under":    {func(i int, _ time.Duration) float64 { return []float64{300, 200, 100, 50, 5, 5, 5, 5, 5, 5}[i] }, .99},
}

const limitOf = 1000

func longPlay() time.Duration { return casetest.Pick(70*time.Second, 10*time.Minute) }

func TestUtilisation(t *testing.T) {
	casetest.WithoutRace(t)
	for name, s := range scenarios {
		for _, a := range algorithms {
			t.Run(name+"/"+a.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					window := shortest(a)
					in := limiter.Params{
						Algorithm: a, Limit: limitOf * int64(window/time.Second), Window: window, ChargeDenied: limiter.ChargeNone,
					}
					time.Sleep(37 * time.Millisecond) // a keeper starts at any moment of a segment
					f := newFleet(t, one(policyOf(t, in)), 10)
					defer f.close()
					f.store.late = lateUpTo(3 * time.Millisecond)
					ideal := shared{rate: limitOf, capacity: limitOf, tokens: 0}
					warm, long := 10*time.Second, longPlay()
					for i, e := range f.envoys {
						e.demand["b"] = func(at time.Duration) float64 {
							if at < time.Duration(i)*430*time.Millisecond {
								return 0
							}
							return s.demand(i, at)
						}
					}
					f.play(warm)
					before := f.passed
					for range int((long - warm) / playStep) {
						sum := 0.0
						at := f.now() + playStep
						for i := range f.envoys {
							sum += s.demand(i, at) * playStep.Seconds()
						}
						ideal.offer(sum, playStep)
						f.play(playStep)
					}
					used := float64(f.passed-before) / ideal.passed
					st := f.keeper.Stats()
					t.Logf("used %.3f, most in 1 s %d, in 10 s %d, charged %d, passed %d, %d messages in %s, %+v",
						used, f.most(time.Second, warm), f.most(10*time.Second, warm), f.store.sum(), f.passed, f.messages, long, st)
					if !isWindow(policyOf(t, in)) && st.Refunded > 0 {
						t.Errorf("%d hits were refunded that had leaked", st.Refunded)
					}
					least := s.least
					if window >= minSlide {
						least -= .03 // what is charged early counts longer than the window
					}
					if used < least {
						t.Errorf("%.3f of what one bucket would let pass did, want at least %.2f", used, least)
					}
				})
			})
		}
	}
}
