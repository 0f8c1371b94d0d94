package offline

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Limit is a limit to simulate.
type Limit struct {
	Name   string          `json:"name"`           // such as "funnel", or "2 daily funnel" if there are several limits
	Rule   string          `json:"rule,omitempty"` // "2 shop: remote_address (rules.yaml:4)", or "" for a single limit
	Policy *limiter.Policy `json:"-"`
	// Reservation is nil for a limit that charges the whole cost when a request arrives.
	Reservation *descriptors.Reservation `json:"-"`
}

// String returns the name and the rate, such as "funnel: 10 per 1s, burst 20".
func (l Limit) String() string {
	return l.Name + ": " + descriptors.FormatRate(l.Policy, l.Reservation)
}

// Limits returns the limits of the rules.
func Limits(set *descriptors.Set) (limits []Limit) {
	for i, l := range set.Limits() {
		name, rule := l.Policy.Algorithm().String(), ""
		if len(set.Limits()) > 1 {
			prefix := strings.TrimSpace(fmt.Sprintf("%d %s", i+1, l.Name)) + " "
			name = prefix + name
			rule = strings.TrimSpace(fmt.Sprintf("%s%s: %s (%s)", prefix, l.Rule.Domain, l.Rule.Path, l.Rule.Source))
		}
		limits = append(limits, Limit{Name: name, Rule: rule, Policy: l.Policy, Reservation: l.Reservation})
	}
	return limits
}

// alone returns rules with only this limit, for requests of onlyDomain with onlyKey and any value.
func alone(l Limit) (*descriptors.Set, error) {
	limit := &descriptors.RateLimit{Params: l.Policy.Params(), Reservation: l.Reservation}
	b := descriptors.NewBuilder(descriptors.Process{})
	b.Add(onlyDomain, &descriptors.Descriptor{Key: onlyKey, RateLimit: limit})
	return b.Build()
}

const onlyDomain, onlyKey = "simulate", "key"

// SimulationOptions are the options of Simulate.
type SimulationOptions struct {
	// Length is the duration of the traffic; delayed requests may pass later.
	Length time.Duration
	// Duration is the time for which an admitted request counts against a concurrency limit, and after which a limit with
	// a reservation learns its cost.
	Duration time.Duration
	// Cost is the cost of each request in hits. 0 means 1, or the estimate of a limit's reservation.
	Cost int64
}

// cost returns the cost of each request for a limit.
func (o *SimulationOptions) cost(l Limit) int64 {
	if o.Cost == 0 && l.Reservation != nil {
		return l.Reservation.Estimate
	}
	return max(o.Cost, 1)
}

// bucket returns the time that a Bucket covers, in whole milliseconds.
func (o *SimulationOptions) bucket() time.Duration {
	return time.Duration(ceilDiv(int64(o.Length), int64(columns*time.Millisecond))) * time.Millisecond
}

// Bucket counts the requests of a short period.
type Bucket struct {
	Offered  int64
	Admitted int64 // by the time when they pass, which is later than their arrival if they are delayed
	Denied   int64
}

// Seconds is a duration that JSON shows as a number of seconds.
type Seconds time.Duration

// MarshalJSON implements json.Marshaler.
func (s Seconds) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(s).Seconds()) }

// Result is the result of a simulation. Numbers are requests, but Worst and Bound are hits.
type Result struct {
	Offered  int64 `json:"offered"`
	Admitted int64 `json:"admitted"`
	Denied   int64 `json:"denied"`
	// Worst is the maximum cost of the requests admitted within any time [t, t+window), or for concurrency, in flight.
	Worst int64 `json:"worst_window"`
	// Bound is the maximum of Worst for any traffic: see the page of the algorithm in docs/algorithms.
	Bound int64 `json:"bound"`
	// Lockout is the longest time in which all requests were denied, from the first of them to the last.
	Lockout Seconds `json:"lockout_seconds"`
	// MeanWait and LongestWait are the delays of admitted requests.
	MeanWait    Seconds `json:"mean_wait_seconds"`
	LongestWait Seconds `json:"longest_wait_seconds"`
	// Charged and Returned are the hits that requests were charged and that ends refunded. Only a limit with a reservation
	// has them.
	Charged  int64 `json:"charged_hits,omitempty"`
	Returned int64 `json:"returned_hits,omitempty"`
	// Buckets are all requests over time, from the start to the end of the traffic or the last admitted request.
	Buckets []Bucket `json:"-"`
}

// Simulate decides requests that arrive at sorted times with each limit separately. Windows begin with the traffic. It
// returns an error only if ctx is done.
func Simulate(ctx context.Context, limits []Limit, arrivals []int64, o SimulationOptions) (*Simulation, error) {
	r := &Simulation{Options: o, ForSeconds: o.Length.Seconds(), BucketSeconds: o.bucket().Seconds()}
	for _, l := range limits {
		run := newRun(l, o)
		if err := run.decide(ctx, arrivals); err != nil {
			return nil, fmt.Errorf("%s: %w", l.Name, err)
		}
		p := l.Policy
		r.Runs = append(r.Runs, LimitRun{
			Limit: l, Algorithm: p.Algorithm().String(), RequestsPerUnit: p.Limit(), WindowSeconds: p.Window().Seconds(),
			Capacity: p.Capacity(), Result: run.finish(),
		})
	}
	return r, nil
}

// run simulates one limit.
type run struct {
	limit   Limit
	options SimulationOptions
	cost    int64   // cost of each request in hits
	charged int64   // hits that the start of a request is charged
	start   int64   // start of the traffic, in microseconds since the Unix epoch
	passed  []int64 // times when admitted requests passed
	denied  bool    // whether the last request was denied
	since   int64   // time of the first request of the current sequence of denials
	waited  time.Duration
	result  *Result
}

func newRun(l Limit, o SimulationOptions) *run {
	buckets := make([]Bucket, ceilDiv(int64(o.Length), int64(o.bucket())))
	return &run{
		limit: l, options: o, cost: o.cost(l), charged: o.cost(l), start: begin(l.Policy), result: &Result{Buckets: buckets},
	}
}

// end is the end of an admitted request.
type end struct {
	at    int64               // time since the start
	token []descriptors.Entry // token of its start, if the limit's reservation needs it
}

// decide decides the arrivals with an Engine, and counts them. An admitted request in flight is released when it ends,
// unless its lease expires before. The end of a request reports its cost to a limit with a reservation.
func (r *run) decide(ctx context.Context, arrivals []int64) error {
	rules, err := alone(r.limit)
	if err != nil {
		return err
	}
	engine, err := newEngine(rules, 4*MaxArrivals, decide.Config{}) //nolint:contextcheck // the engine ends with Close
	if err != nil {
		return err
	}
	defer engine.Close()
	reservation, entries := r.limit.Reservation, []descriptors.Entry{{Key: onlyKey, Value: "any"}}
	request := Request{Domain: onlyDomain, Descriptors: make([]decide.Descriptor, 1)}
	ask := func(at, cost int64, more ...descriptors.Entry) (*decide.Verdict, error) {
		request.At = r.start + at
		request.Descriptors[0] = decide.Descriptor{Entries: append(entries, more...), Cost: cost}
		return engine.Decide(ctx, &request)
	}
	atStart, atEnd := r.cost, -r.cost
	canEnd := r.limit.Policy.Algorithm().CountsInFlight() && r.options.Duration < r.limit.Policy.Window()
	if reservation != nil {
		atStart, atEnd, canEnd = 1, r.cost, true // the charge at the start is the estimate
	}
	finish := func(e end) error {
		v, err := ask(e.at, atEnd, e.token...)
		r.charge(v)
		return err
	}
	var ends []end
	for _, at := range arrivals {
		for ; len(ends) > 0 && ends[0].at <= at; ends = ends[1:] {
			if err := finish(ends[0]); err != nil {
				return err
			}
		}
		v, err := ask(at, atStart)
		if err != nil {
			return err
		}
		r.count(at, v)
		if canEnd && !v.Denied {
			e := end{at: at + r.options.Duration.Microseconds()}
			if _, token := v.Start(); reservation != nil && !reservation.EndsByCost {
				e.token = []descriptors.Entry{{Key: decide.StartKey, Value: token}}
			}
			ends = append(ends, e)
		}
	}
	for i := range ends {
		if err := finish(ends[i]); err != nil {
			return err
		}
	}
	return nil
}

// charge counts the hits that a start or an end charges or refunds on a limit with a reservation.
func (r *run) charge(v *decide.Verdict) {
	if r.limit.Reservation == nil {
		return
	}
	for _, h := range v.Hits {
		r.result.Charged += max(0, h.N)
		r.result.Returned += max(0, -h.N)
	}
}

// newYear is 2026-01-01 00:00:00 UTC, in microseconds since the Unix epoch.
const newYear = 1_767_225_600_000_000

// begin returns the start of a window of the policy: the first in 2026 for calendar windows, else some past time.
func begin(p *limiter.Policy) int64 {
	if limit.Edges(p, newYear) != nil {
		return limit.Edges(p, newYear-1)[2]
	}
	w := p.Window().Microseconds()
	return ceilDiv(1_000_000_000_000_000, w) * w
}

// shortWindow reports whether a calendar window during the traffic is shorter than its nominal length, such as a day of
// 23 hours, or February: a time of the nominal length can then overlap three windows.
func (r *run) shortWindow() bool {
	w := r.limit.Policy.Window().Microseconds()
	for t := r.start; t < r.start+r.options.Length.Microseconds(); {
		edges := limit.Edges(r.limit.Policy, t)
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

// count counts a request that arrived at a time since the start.
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
	r.denied, r.charged = false, v.Hits[0].N
	r.charge(v)
	r.waited += wait
	r.result.LongestWait = max(r.result.LongestWait, Seconds(wait))
	r.result.Admitted++
	r.bucket(at).Admitted++
	if r.limit.Policy.Algorithm().CountsInFlight() {
		_, inFlight := limit.Counter(r.limit.Policy, &v.Decisions[0])
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
	r.result.Worst = max(r.result.Worst, r.cost*worst(r.passed, r.limit.Policy.Window().Microseconds()))
	bound := limit.Bound(r.limit.Policy, r.cost)
	if r.shortWindow() {
		bound += r.limit.Policy.Limit()
	}
	r.result.Bound = max(bound, bound/r.charged*r.cost) // larger if a start is charged less than the request costs
	return r.result
}

// bucket returns the bucket for a time since the start.
func (r *run) bucket(at int64) *Bucket {
	i := int(at / r.options.bucket().Microseconds())
	if missing := i + 1 - len(r.result.Buckets); missing > 0 {
		r.result.Buckets = append(r.result.Buckets, make([]Bucket, missing)...)
	}
	return &r.result.Buckets[i]
}

// worst returns the maximum number of requests that passed within any time [t, t+w).
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

// columns is the approximate number of buckets.
const columns = 60

// ceilDiv divides a >= 0 by b > 0, rounding up.
func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }
