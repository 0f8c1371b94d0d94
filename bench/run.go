package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"time"
)

// settings are the settings of a benchmark.
type settings struct {
	Rounds      int
	Duration    time.Duration
	WarmUp      time.Duration
	Concurrency int
	Connections int
	Algorithm   string
}

// scenario is a workload and its arrival pattern.
type scenario struct {
	name     string
	w        *workload
	oneByOne bool // one outstanding request
}

// parseScenario parses w1 or w1c1 (one outstanding request).
func parseScenario(name string) (s scenario, err error) {
	s.name = name
	name, s.oneByOne = strings.CutSuffix(name, "c1")
	s.w, err = workloadNamed(name)
	return s, err
}

// sample is the result of one target in one scenario in one round. Times are in microseconds, CPU times per request.
type sample struct {
	ReqPerSec            float64
	P50, P99, P999       float64
	Server, Redis, Envoy float64 // CPU time
	Calls                float64 // to Redis, per request
	Denied               float64 // share
	RSS                  float64 // of Envoy after the load, in MB
	Others               float64 // share of all CPUs that other programs used
}

// bench runs scenarios against targets.
type bench struct {
	settings
	scenarios []scenario
	targets   []*target
	requests  map[*workload]*requests
	samples   map[sampled][]sample // one per round
	progress  io.Writer
}

// sampled identifies samples by the names of scenario and target.
type sampled struct{ scenario, target string }

// run measures every target in every scenario once per round, in a changing order.
func (b *bench) run(ctx context.Context) error {
	for round := range b.Rounds {
		for _, s := range b.scenarios {
			for i := range b.targets {
				t := b.targets[(i+round)%len(b.targets)]
				got, err := b.measure(ctx, s, t)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", t.name, s.name, err)
				}
				of := sampled{s.name, t.name}
				b.samples[of] = append(b.samples[of], got)
				fmt.Fprintf(b.progress, "round %d  %-5s %-10s %7.0f req/s  p50 %6.0f us  CPU %5.1f + %4.1f us  others %2.0f %%\n",
					round+1, s.name, t.name, got.ReqPerSec, got.P50, got.Server, got.Redis, 100*got.Others)
			}
		}
	}
	return nil
}

func (b *bench) measure(ctx context.Context, s scenario, t *target) (sample, error) {
	conns, atOnce := b.Connections, b.Concurrency
	if s.oneByOne {
		conns, atOnce = 1, 1
	}
	l, err := dial(t.addr, s.w, b.requests[s.w], conns)
	if err != nil {
		return sample{}, err
	}
	defer l.close()
	if err := b.prime(ctx, l, t); err != nil {
		return sample{}, err
	}
	if err := l.closed(ctx, b.WarmUp, atOnce).failed(); err != nil {
		return sample{}, err
	}
	runtime.GC() // so that the load generator's collection is less likely to be measured
	var got *tally
	spent, err := during(ctx, t.usage, func() { got = l.closed(ctx, b.Duration, atOnce) })
	if err != nil {
		return sample{}, err
	}
	return newSample(got, &spent), expect(s.w, t, got)
}

// prime checks that the target has the workload's rules, and exhausts the tight keys, once per target and workload.
func (b *bench) prime(ctx context.Context, l *load, t *target) error {
	if t.alwaysOK || t.primed[l.w.name] {
		return nil
	}
	if err := probe(ctx, t.addr, l.w, 0); err != nil {
		return err
	}
	if keys := l.w.tightKeys(); len(keys) > 0 {
		if err := l.each(ctx, keys, b.Concurrency).failed(); err != nil {
			return err
		}
	}
	t.primed[l.w.name] = true
	return nil
}

// expect returns an error if the results do not match the workload's rules.
func expect(w *workload, t *target, got *tally) error {
	if err := got.failed(); err != nil {
		return err
	}
	want := w.deniedShare()
	if t.alwaysOK {
		want = 0
	}
	// If all or no requests are to be denied, a single other result is an error; otherwise the share is a random sample's.
	share, slack := deniedShare(got), 0.0
	if want > 0 && want < 1 {
		slack = 0.01 + 4*math.Sqrt(want*(1-want)/float64(got.answered()))
	}
	if math.Abs(share-want) > slack {
		return fmt.Errorf("%.3f %% of %d requests were denied, want %.3f %%", 100*share, got.answered(), 100*want)
	}
	return nil
}

func deniedShare(t *tally) float64 { return float64(t.over) / float64(t.answered()) }

func newSample(t *tally, spent *usage) sample {
	n := float64(t.answered())
	return sample{
		ReqPerSec: n / spent.took.Seconds(),
		P50:       micros(t.latency.quantile(0.50)),
		P99:       micros(t.latency.quantile(0.99)),
		P999:      micros(t.latency.quantile(0.999)),
		Server:    micros(spent.server) / n,
		Redis:     micros(spent.redis) / n,
		Envoy:     micros(spent.envoy) / n,
		Calls:     float64(spent.calls) / n,
		Denied:    deniedShare(t),
		Others:    spent.others(),
	}
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
