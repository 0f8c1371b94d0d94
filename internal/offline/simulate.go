package offline

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// SimulationOptions are the circumstances of a run.
type SimulationOptions struct {
	// Length is how long the traffic lasts; requests that wait may go on later.
	Length time.Duration
	// Duration is how long a request of a concurrency limit takes until it is given back.
	Duration time.Duration
}

// bucket is what a Bucket counts: whole milliseconds.
func (o *SimulationOptions) bucket() time.Duration {
	return time.Duration(ceilDiv(int64(o.Length), int64(columns*time.Millisecond))) * time.Millisecond
}

// Bucket counts requests of a short time.
type Bucket struct {
	Offered  int64
	Admitted int64 // at the time when they go on, which is later than they were offered if they wait
	Denied   int64
}

// Seconds is a time that is a number of seconds in JSON.
type Seconds time.Duration

// MarshalJSON implements json.Marshaler.
func (s Seconds) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(s).Seconds()) }

// Result is what became of the traffic. Numbers are requests.
type Result struct {
	Offered  int64 `json:"offered"`
	Admitted int64 `json:"admitted"`
	Denied   int64 `json:"denied"`
	// Worst is the most that was admitted within any window as long as the limit's, begin included and end not; of
	// concurrency, the most in flight.
	Worst int64 `json:"worst_window"`
	// Bound is what Worst cannot exceed, whatever the traffic, as the page of its algorithm in docs/algorithms has it.
	Bound int64 `json:"bound"`
	// Lockout is the longest time in which requests came and all were denied: from the first of them to the last.
	Lockout Seconds `json:"lockout_seconds"`
	// MeanWait and LongestWait are how long admitted requests were delayed.
	MeanWait    Seconds `json:"mean_wait_seconds"`
	LongestWait Seconds `json:"longest_wait_seconds"`
	// Buckets are all requests by time, from the start until the traffic ended and the last request went on.
	Buckets []Bucket `json:"-"`
}

// Simulate decides requests at the times, which are sorted, by each limit alone. Windows begin with the traffic. The
// error is that of ctx.
func Simulate(ctx context.Context, limits []Limit, arrivals []int64, o SimulationOptions) (*Simulation, error) {
	r := newSimulation(o)
	for _, l := range limits {
		run := newRun(l.Policy, o)
		if err := run.decide(ctx, arrivals); err != nil {
			return nil, fmt.Errorf("%s: %w", l.Name, err)
		}
		r.add(l, run)
	}
	return r, nil
}

// run is a run in progress.
type run struct {
	policy  *limiter.Policy
	options SimulationOptions
	start   int64   // of the traffic, in microseconds since the Unix epoch
	passed  []int64 // when admitted requests went on
	denied  bool    // the last request was
	since   int64   // when the first of the last requests was denied
	waited  time.Duration
	result  *Result
}

func newRun(p *limiter.Policy, o SimulationOptions) *run {
	buckets := make([]Bucket, ceilDiv(int64(o.Length), int64(o.bucket())))
	return &run{policy: p, options: o, start: begin(p), result: &Result{Buckets: buckets}}
}

// decide has an Engine decide the arrivals, and counts them. An admitted request in flight is given back when it ends,
// unless its lease ends first.
func (r *run) decide(ctx context.Context, arrivals []int64) error {
	rules, err := alone(r.policy)
	if err != nil {
		return err
	}
	engine, err := newEngine(rules, 4*MaxArrivals) //nolint:contextcheck // it ends with Close
	if err != nil {
		return err
	}
	defer engine.Close()
	entries := []descriptors.Entry{{Key: onlyKey, Value: "any"}}
	request := Request{Domain: onlyDomain, Descriptors: []decide.Descriptor{{Entries: entries}}}
	ask := func(at, cost int64) (*decide.Verdict, error) {
		request.At, request.Descriptors[0].Cost = r.start+at, cost
		return engine.Decide(ctx, &request)
	}
	canEnd := r.policy.Algorithm().CountsInFlight() && r.options.Duration < r.policy.Window()
	var ends []int64
	for _, at := range arrivals {
		for ; len(ends) > 0 && ends[0] <= at; ends = ends[1:] {
			if _, err := ask(ends[0], -1); err != nil {
				return err
			}
		}
		v, err := ask(at, 1)
		if err != nil {
			return err
		}
		r.count(at, v)
		if canEnd && !v.Denied {
			ends = append(ends, at+r.options.Duration.Microseconds())
		}
	}
	return nil
}

// newYear is 2026-01-01 00:00:00 UTC, in microseconds since the Unix epoch.
const newYear = 1_767_225_600_000_000

// begin is when a window of the policy begins: of a calendar the first one in 2026, else somewhere in the past.
func begin(p *limiter.Policy) int64 {
	if limit.Edges(p, newYear) != nil {
		return limit.Edges(p, newYear-1)[2]
	}
	w := p.Window().Microseconds()
	return ceilDiv(1_000_000_000_000_000, w) * w
}

// shortWindow says whether a window of a calendar is shorter than its nominal length during the traffic, as a day of
// 23 hours is, or February: as long a time then touches three windows.
func (r *run) shortWindow() bool {
	w := r.policy.Window().Microseconds()
	for t := r.start; t < r.start+r.options.Length.Microseconds(); {
		edges := limit.Edges(r.policy, t)
		if edges == nil {
			return false
		}
		if edges[2]-edges[1] < w {
			return true
		}
		t = edges[2]
	}
	return false
}

// count counts a request at a time since the start, which the limit has decided.
func (r *run) count(at int64, v *decide.Verdict) {
	r.result.Offered++
	r.bucket(at).Offered++
	if !v.Denied {
		r.admit(at, v)
		return
	}
	r.result.Denied++
	r.bucket(at).Denied++
	if !r.denied {
		r.denied, r.since = true, at
	}
	r.result.Lockout = max(r.result.Lockout, Seconds(at-r.since)*Seconds(time.Microsecond))
}

func (r *run) admit(at int64, v *decide.Verdict) {
	wait := v.Decisions[0].Wait
	at += wait.Microseconds()
	r.denied = false
	r.waited += wait
	r.result.LongestWait = max(r.result.LongestWait, Seconds(wait))
	r.result.Admitted++
	r.bucket(at).Admitted++
	if r.policy.Algorithm().CountsInFlight() {
		_, inFlight := limit.Counter(r.policy, &v.Decisions[0])
		r.result.Worst = max(r.result.Worst, inFlight)
		return
	}
	r.passed = append(r.passed, at)
}

// finish completes the result.
func (r *run) finish() *Result {
	if n := r.result.Admitted; n > 0 {
		r.result.MeanWait = Seconds((r.waited / time.Duration(n)).Truncate(time.Microsecond))
	}
	r.result.Worst = max(r.result.Worst, worst(r.passed, r.policy.Window().Microseconds()))
	r.result.Bound = limit.Bound(r.policy, 1)
	if r.shortWindow() {
		r.result.Bound += r.policy.Limit()
	}
	return r.result
}

// bucket is where hits at a time are counted.
func (r *run) bucket(at int64) *Bucket {
	i := int(at / r.options.bucket().Microseconds())
	if missing := i + 1 - len(r.result.Buckets); missing > 0 {
		r.result.Buckets = append(r.result.Buckets, make([]Bucket, missing)...)
	}
	return &r.result.Buckets[i]
}

// worst is the most that passed within any window [t, t+w).
func worst(passed []int64, w int64) (most int64) {
	slices.Sort(passed)
	first := 0
	for i, at := range passed {
		for passed[first] <= at-w {
			first++
		}
		most = max(most, int64(i-first+1))
	}
	return most
}

// columns is about how many buckets there are.
const columns = 60

// ceilDiv divides a >= 0 by b > 0, rounding up.
func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }
