// Command overshoot simulates budgets for requests whose cost is known only at their end, in virtual time. It prints by
// how much each method exceeds a budget and how much of the budget it uses. docs/performance.md has the result.
//
//	go run ./bench/overshoot >bench/results/overshoot.md
package main

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"time"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// Hints (such as max_tokens) have a uniform distribution, and costs a log-normal one. All are in hits, such as tokens.
const (
	budget            = 100_000 // of a window
	estimate          = 1_000   // the reservation's, as atMost
	leastHint, atMost = 200, 4_000
	meanCost, sigma   = 0.4, 0.5 // mean cost in hints, and standard deviation of its logarithm
	meanOfAll         = meanCost * (leastHint + atMost) / 2
	seeds             = 100 // runs for each number
	look, inFlight    = "look and charge", "concurrency"
	reserve           = "reservation"
	start             = 1_767_225_600_000_000 // of a run, microseconds since the Unix epoch
	windowsOrStreams  = 3                     // time before the measurement, and of the measurement
)

// request is an admitted request. Times are in microseconds.
type request struct{ ends, cost, charged, gone int64 }

// run is a simulation with one counter.
type run struct {
	method           string
	policy, owes     *limiter.Policy // owes always charges
	window, duration int64           // window and stream, microseconds
	running          []request       // oldest first
	state            storekit.State
}

func newRun(in limiter.Params, method string, stream time.Duration) (*run, error) {
	r := &run{method: method, window: in.Window.Microseconds(), duration: stream.Microseconds()}
	in.ChargeDenied = limiter.ChargeFull
	if method == reserve {
		in.Reserve = atMost
	}
	var err error
	r.owes, err = limiter.NewPolicy(in)
	if r.policy = r.owes; err == nil && method == reserve {
		in.ChargeDenied = limiter.ChargeNone
		r.policy, err = limiter.NewPolicy(in)
	}
	return r, err
}

func (r *run) take(now int64, h limiter.Hit) limiter.Decision {
	counters, out := [1]storekit.Counter{{State: r.state}}, [1]limiter.Decision{}
	storekit.Decide(storekit.Clocks{Steady: now, Wall: now}, []limiter.Hit{h}, counters[:], out[:])
	if counters[0].Changed {
		r.state = counters[0].Next
	}
	return out[0]
}

// start starts a request, and reports whether it is admitted.
func (r *run) start(now, hint, cost int64) bool {
	q := request{ends: now + r.duration, cost: cost}
	var ok bool
	switch r.method {
	case look:
		ok = r.take(now, limiter.Hit{Policy: r.policy, Peek: true}).Allowed
	case inFlight: // as many as use the budget on average
		ok = len(r.running) < max(1, int(math.Round(budget/meanOfAll*float64(r.duration)/float64(r.window))))
	case reserve:
		q.charged = (&descriptors.Reservation{Estimate: estimate, AtMost: atMost}).Charge(hint)
		d := r.take(now, limiter.Hit{Policy: r.policy, N: q.charged})
		ok, q.gone = d.Allowed, d.TakenAt
	}
	if ok {
		r.running = append(r.running, q)
	}
	return ok
}

// end ends the oldest request.
func (r *run) end() {
	q := r.running[0]
	r.running = r.running[1:]
	switch more := q.cost - q.charged; {
	case r.method == inFlight || more == 0:
	case more < 0:
		r.take(q.ends, limiter.Hit{Policy: r.policy, N: more, TakenAt: q.gone})
	default:
		r.take(q.ends, limiter.Hit{Policy: r.owes, N: more})
	}
}

// simulate offers load budgets. worst is the largest cost of the requests that start in one window of the clock, and
// used the mean cost, both in budgets.
func (r *run) simulate(seed uint64, load float64) (worst, used float64) {
	rng := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a simulation
	windows := windowsOrStreams * max(1, r.duration/r.window)
	spent := make([]int64, 2*windows)
	for now := int64(start); ; {
		now += int64(rng.ExpFloat64() * meanOfAll / budget / load * float64(r.window))
		for len(r.running) > 0 && r.running[0].ends <= now {
			r.end()
		}
		i := (now - start) / r.window
		if i >= 2*windows {
			break
		}
		hint := leastHint + rng.Int64N(atMost-leastHint+1)
		cost := int64(float64(hint) * meanCost * math.Exp(rng.NormFloat64()*sigma-sigma*sigma/2))
		if r.start(now, hint, cost) {
			spent[i] += cost
		}
	}
	for _, hits := range spent[windows:] {
		worst = max(worst, float64(hits)/budget)
		used += float64(hits) / budget / float64(windows)
	}
	return worst, used
}

func main() {
	if err := report(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func report(to io.Writer) error {
	fmt.Fprintf(to, "Poisson starts; hints from %d to %d; mean cost %g of the hint; estimate %d, at_most %d; budget %d; "+
		"%d runs.\n", leastHint, atMost, meanCost, estimate, atMost, budget, seeds)
	for _, algorithm := range []limiter.Algorithm{limiter.FixedWindow, limiter.TokenBucket} {
		fmt.Fprintf(to, "\n%s: worst window / mean use, in budgets\n\n| budget | streams | offered | %s | %s | %s |\n"+
			"|---|---|---|---|---|---|\n", algorithm, look, inFlight, reserve)
		for _, window := range []time.Duration{time.Second, time.Minute, time.Hour} {
			for _, stream := range []time.Duration{time.Second, 20 * time.Second, time.Minute, 2 * time.Minute} {
				for _, load := range []float64{0.5, 1, 2} {
					fmt.Fprintf(to, "| %s | %s | %g |", window, stream, load)
					for _, method := range []string{look, inFlight, reserve} {
						var worst, used float64
						for seed := range uint64(seeds) {
							in := limiter.Params{Algorithm: algorithm, Limit: budget, Window: window}
							r, err := newRun(in, method, stream)
							if err != nil {
								return err
							}
							w, u := r.simulate(seed, load)
							worst, used = max(worst, w), used+u/seeds
						}
						fmt.Fprintf(to, " %.2f / %.2f |", worst, used)
					}
					fmt.Fprintln(to)
				}
			}
		}
	}
	return nil
}
