package algorithms

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// TestDrawings runs the algorithms in virtual time, and compares what they do with the drawings of the pages.
func TestDrawings(t *testing.T) {
	for _, s := range scenes() {
		t.Run(s.name, func(t *testing.T) {
			file := filepath.Join("..", "img", "algorithms", s.name+".svg")
			got := draw(s, run(t, s))
			if err := wellFormed(got); err != nil {
				t.Fatal(err)
			}
			if *casetest.Update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s does not show what %s does; make docs draws it again", file, s.limit.Algorithm)
			}
		})
	}
}

func wellFormed(svg []byte) error {
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// scene is a limit and the requests that a drawing sends to it.
type scene struct {
	name, title string
	limit       limiter.Params
	length      time.Duration
	requests    []request
	counter     string // what the lower panel shows
	top         float64
	bottom      float64 // of the lower panel
	line        float64 // the highest value at which requests pass; 0: none is drawn
	value       func(p *limiter.Policy, ask func(n int64) limiter.Decision) float64
	windows     bool // marks the edges of windows
	paced       bool // the lower panel shows the rate at which requests go on
}

type request struct {
	at    time.Duration
	cost  int64
	lasts time.Duration // time until the release, for concurrency; 0: never
}

// sequence is n requests of cost 1, the first one at from and each one later by every.
func sequence(from, every time.Duration, n int) []request {
	all := make([]request, n)
	for i := range all {
		all[i] = request{at: from + time.Duration(i)*every, cost: 1}
	}
	return all
}

// greedy is a client that sends a window's hits on both sides of a window's edge, then twice the rate, then a burst.
func greedy() []request {
	const ms = time.Millisecond
	return slices.Concat(
		sequence(8*time.Second, 200*ms, 10), sequence(10*time.Second, 200*ms, 10),
		sequence(18*time.Second, 500*ms, 24), sequence(36*time.Second, 150*ms, 14))
}

func scenes() []scene {
	const second, ms = time.Second, time.Millisecond
	ten := func(a limiter.Algorithm) limiter.Params {
		return limiter.Params{Algorithm: a, Limit: 10, Window: 10 * second}
	}
	type policy = *limiter.Policy
	type asked = func(n int64) limiter.Decision
	used := func(p policy, ask asked) float64 { return float64(p.Limit() - ask(0).Remaining) }
	perSecond := func(p policy) float64 { return float64(p.Limit()) / p.Window().Seconds() }
	level := func(p policy, ask asked) float64 { return ask(0).ResetAfter.Seconds() * perSecond(p) }
	tokens := func(p policy, ask asked) float64 { return float64(p.Capacity()) - level(p, ask) }

	funnel, bucket, batches := ten(limiter.Funnel), ten(limiter.TokenBucket), ten(limiter.TokenBucket)
	funnel.Burst, bucket.Burst, batches.RefillsAtOnce = 5, 5, true
	queue := ten(limiter.LeakyQueue)
	queue.Burst = 5
	bursty := ten(limiter.SmoothBursty)
	bursty.BurstFor, bursty.MaxWait = 5*second, 2*second
	warming := limiter.Params{Algorithm: limiter.SmoothWarmingUp, Limit: 2, Window: second, MaxWait: 2 * second}
	inFlight := limiter.Params{Algorithm: limiter.Concurrency, Limit: 3, Window: 12 * second}

	return []scene{
		{
			name: "fixed-window", title: "fixed_window, 10 per 10 s", limit: ten(limiter.FixedWindow), length: 40 * second,
			requests: greedy(), counter: "hits counted in the window", top: 12, line: 10, windows: true,
			value: used,
		},
		{
			name: "funnel", title: "funnel, 10 per 10 s, burst 5", limit: funnel, length: 40 * second,
			requests: greedy(), counter: "level of the funnel, hits", top: 8, line: 5, value: level,
		},
		{
			name: "token-bucket", title: "token_bucket, 10 per 10 s, burst 5", limit: bucket, length: 40 * second,
			requests: greedy(), counter: "tokens", top: 8, line: 5, value: tokens,
		},
		{
			name: "token-bucket-interval", title: "token_bucket, 10 per 10 s, refill: interval", limit: batches,
			length: 40 * second, requests: greedy(), counter: "tokens", top: 12, line: 10,
			value: func(_ policy, ask asked) float64 { return float64(ask(0).Remaining) },
		},
		{
			name: "sliding-window", title: "sliding_window, 10 per 10 s, 10 segments", limit: ten(limiter.SlidingWindow),
			length: 40 * second, requests: greedy(), counter: "hits of the last 10 s, estimated", top: 12, line: 10, value: used,
		},
		{
			name: "sliding-log", title: "sliding_log, 10 per 10 s", limit: ten(limiter.SlidingLog), length: 40 * second,
			requests: greedy(), counter: "hits of the last 10 s", top: 12, line: 10, value: used,
		},
		{
			name: "leaky-queue", title: "leaky_queue, 10 per 10 s, burst 5", limit: queue, length: 24 * second,
			requests: slices.Concat(sequence(2*second, 100*ms, 9), sequence(13*second, 400*ms, 12)),
			counter:  "seconds that the next request would wait", top: 8, line: 5,
			value: func(p policy, ask asked) float64 {
				if d := ask(1); !d.Allowed {
					return (d.RetryAfter + p.MaxWait()).Seconds()
				}
				return ask(1).Wait.Seconds()
			},
		},
		{
			name: "smooth-bursty", title: "smooth_bursty, 10 per 10 s, burst_seconds 5, max_wait 2s", limit: bursty,
			length: 40 * second, counter: "permits stored; below 0: owed", top: 8, bottom: -8,
			requests: slices.Concat(sequence(2*second, 300*ms, 9), []request{{at: 18 * second, cost: 12}},
				sequence(20*second, second, 9), sequence(36*second, 200*ms, 4)),
			value: func(p policy, ask asked) float64 {
				return p.Params().BurstFor.Seconds()*perSecond(p) - level(p, ask)
			},
		},
		{
			name: "smooth-warming-up", title: "smooth_warming_up, 2 per s, warm_up 10s, max_wait 2s", limit: warming,
			length: 44 * second, counter: "requests per second that go on", top: 2.4, line: 2, paced: true,
			requests: slices.Concat(sequence(2*second, 250*ms, 72), sequence(34*second, 250*ms, 32)),
		},
		{
			name: "concurrency", title: "concurrency, 3 at once, lease 12s", limit: inFlight, length: 38 * second,
			counter: "requests in flight", top: 4, line: 3, value: used,
			requests: []request{
				{2 * second, 1, 5 * second},
				{3 * second, 1, 9 * second},
				{4 * second, 1, 0},
				{5 * second, 1, second},
				{6 * second, 1, second},
				{8 * second, 1, 6 * second},
				{10 * second, 1, second},
				{13 * second, 1, 8 * second},
				{15 * second, 1, 4 * second},
				{15500 * ms, 1, second},
				{17 * second, 1, 6 * second},
				{20 * second, 1, 4 * second},
				{20500 * ms, 1, second},
				{22 * second, 1, 3 * second},
			},
		},
	}
}

// history has the results of a scene's requests.
type history struct {
	policy  *limiter.Policy
	answers []answer
	points  []point
	worst   int64         // the most hits admitted in any window
	from    time.Duration // where that window begins
}

type answer struct {
	request

	admitted bool
	goes     time.Duration // when it goes on
	ends     time.Duration // when it ends, of concurrency; at if it is never released
}

// end is the end of an admitted request of concurrency.
type end struct {
	at      time.Duration
	takenAt int64
}

type point struct {
	at    time.Duration
	value float64
}

// start is when scenes begin: at the edge of a window.
const start = 1_700_000_000 * int64(time.Second/time.Microsecond)

// run sends the scene's requests to its limit in virtual time.
func run(t *testing.T, s scene) history {
	t.Helper()
	policy, err := limiter.NewPolicy(s.limit)
	if err != nil {
		t.Fatal(err)
	}
	h := history{policy: policy}
	var state storekit.State
	var ends []end
	step := func(at time.Duration, n, takenAt int64) limiter.Decision {
		slots, out := []storekit.Counter{{State: state}}, make([]limiter.Decision, 1)
		now := start + at.Microseconds()
		hits := []limiter.Hit{{Policy: policy, N: n, TakenAt: takenAt}}
		storekit.Decide(storekit.Clocks{Steady: now, Wall: now}, hits, slots, out)
		if slots[0].Changed {
			state = slots[0].Next
		}
		return out[0]
	}
	look := func(at time.Duration) {
		if s.value != nil {
			h.points = append(h.points, point{at, s.value(policy, func(n int64) limiter.Decision {
				_, d := storekit.Step(policy, state, start+at.Microseconds(), n)
				return d
			})})
		}
	}
	const tick = 50 * time.Millisecond
	requests := s.requests
	for at := time.Duration(0); at <= s.length; at += tick {
		look(at)
		for len(ends) > 0 && ends[0].at <= at {
			step(ends[0].at, -1, ends[0].takenAt)
			ends = ends[1:]
			look(at)
		}
		for len(requests) > 0 && requests[0].at <= at {
			r := requests[0]
			requests = requests[1:]
			d := step(r.at, r.cost, 0)
			a := answer{request: r, admitted: d.Allowed, goes: r.at + d.Wait, ends: r.at + r.lasts}
			if d.Allowed && r.lasts > 0 {
				ends = append(ends, end{a.ends, d.TakenAt})
				slices.SortFunc(ends, func(a, b end) int { return cmp.Compare(a.at, b.at) })
			}
			h.answers = append(h.answers, a)
			look(at)
		}
	}
	h.count()
	if s.paced {
		h.pace()
	}
	return h
}

// count finds the window in which the most hits go on.
func (h *history) count() {
	window := h.policy.Window()
	for _, first := range h.answers {
		var sum int64
		for _, a := range h.answers {
			if a.admitted && a.goes >= first.goes && a.goes < first.goes+window {
				sum += a.cost
			}
		}
		if sum > h.worst {
			h.worst, h.from = sum, first.goes
		}
	}
}

// pace makes the points show one request for each distance between two that go on.
func (h *history) pace() {
	last := time.Duration(-1)
	for _, a := range h.answers {
		if !a.admitted {
			continue
		}
		if apart := a.goes - last; last >= 0 && apart < 5*time.Second {
			h.points = append(h.points, point{a.goes, 1 / apart.Seconds()})
		} else {
			h.points = append(h.points, point{a.goes, -1}) // a pause
		}
		last = a.goes
	}
}

// TestPlaceThatIsNeverReleased: concurrency.md says when it is free again if ends come without weir_start: not while
// others come and go, but a lease after the last one came.
func TestPlaceThatIsNeverReleased(t *testing.T) {
	const lease = 10 * time.Second
	p, err := limiter.NewPolicy(limiter.Params{Algorithm: limiter.Concurrency, Limit: 3, Window: lease})
	if err != nil {
		t.Fatal(err)
	}
	var state storekit.State
	var d limiter.Decision
	step := func(at time.Duration, n int64) { state, d = storekit.Step(p, state, start+at.Microseconds(), n) }
	step(0, 1) // and nobody releases it
	last := time.Minute
	for at := time.Second; at <= last; at += time.Second {
		step(at, 1)
		step(at+time.Second/2, -1)
		if d.Remaining != 2 {
			t.Fatalf("%d of 3 places are free at %s, want 2", d.Remaining, at)
		}
	}
	if step(last+lease-1, 0); d.Remaining != 2 {
		t.Errorf("%d of 3 places are free before a lease is over, want 2", d.Remaining)
	}
	if step(last+lease, 0); d.Remaining != 3 {
		t.Errorf("%d of 3 places are free after a lease, want 3", d.Remaining)
	}
}
