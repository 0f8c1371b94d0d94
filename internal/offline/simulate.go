package offline

import (
	"slices"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// SimulationOptions are the circumstances of a run.
type SimulationOptions struct {
	// Length is how long the traffic lasts; requests that wait may go on later.
	Length time.Duration
	// Bucket is what Result.Buckets are counted over.
	Bucket time.Duration
	// Duration is how long a request of a concurrency limit takes until it is given back.
	Duration time.Duration
}

// Bucket counts hits of a short time.
type Bucket struct {
	Offered  int64
	Admitted int64 // at the time when they go on, which is later than they were offered if they wait
	Denied   int64
}

// Result is what became of the traffic. Numbers are hits; a request is as many of them as it costs.
type Result struct {
	Offered, Admitted, Denied int64
	// Worst is the most that one key was admitted within any window as long as the limit's, begin included and
	// end not; of concurrency, the most that it had in flight.
	Worst int64
	// Bound is what Worst cannot exceed, whatever the traffic, as docs/algorithms.md has it.
	Bound int64
	// Lockout is the longest time in which requests of one key came and all were denied: from the first of them
	// to the last.
	Lockout time.Duration
	// MeanWait and LongestWait are how long admitted requests were held back.
	MeanWait, LongestWait time.Duration
	// Buckets are all hits by time, from the start until the traffic ended and the last request went on.
	Buckets []Bucket
}

// Run offers the arrivals, sorted by time, to a limit whose windows begin with the traffic.
func Run(p *limiter.Policy, arrivals []Arrival, o SimulationOptions) *Result {
	r := newRun(p, begin(p), o)
	dearest := int64(1)
	for _, a := range arrivals {
		r.giveBack(a.At)
		r.offer(a)
		dearest = max(dearest, a.Cost)
	}
	return r.finish(dearest)
}

func newRun(p *limiter.Policy, start int64, o SimulationOptions) *run {
	buckets := make([]Bucket, ceilDiv(o.Length.Microseconds(), o.Bucket.Microseconds()))
	return &run{policy: p, options: o, start: start, counters: map[string]*counter{}, result: &Result{Buckets: buckets}}
}

// newYear is 2026-01-01 00:00:00 UTC, in microseconds since the Unix epoch.
const newYear = 1_767_225_600_000_000

// begin is when a window of the policy begins: of a calendar the first one in 2026, else somewhere in the past.
func begin(p *limiter.Policy) int64 {
	if p.Edges(newYear) != nil {
		return p.Edges(newYear - 1)[2]
	}
	w := p.Window().Microseconds()
	return ceilDiv(1_000_000_000_000_000, w) * w
}

// shortWindow says whether a window of a calendar is shorter than its nominal length during the traffic, as a day of
// 23 hours is, or February: as long a time then touches three windows.
func (r *run) shortWindow() bool {
	w := r.policy.Window().Microseconds()
	for t := r.start; t < r.start+r.options.Length.Microseconds(); {
		edges := r.policy.Edges(t)
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

// run is a run in progress.
type run struct {
	policy   *limiter.Policy
	options  SimulationOptions
	start    int64 // of the traffic, in microseconds since the Unix epoch
	counters map[string]*counter
	running  []pass // of concurrency, by end
	admitted int64  // requests
	waited   time.Duration
	result   *Result
}

// counter is what is known of one key.
type counter struct {
	state    limiter.State
	passed   []pass
	inFlight int64
	denied   bool  // the last request was
	since    int64 // when the first of the last requests was denied
}

// pass is an admitted request: when it went on or, while it is running, when it ends.
type pass struct {
	at, cost int64
	of       *counter
}

func (r *run) offer(a Arrival) {
	c := r.counter(a.Key)
	var d limiter.Decision
	c.state, d = r.policy.Step(c.state, r.start+a.At, a.Cost)
	r.count(c, a, d.Allowed, d.Wait)
}

// counter is what is known of the key.
func (r *run) counter(key string) *counter {
	c := r.counters[key]
	if c == nil {
		c = &counter{}
		r.counters[key] = c
	}
	return c
}

// count counts an arrival that was decided.
func (r *run) count(c *counter, a Arrival, isAdmitted bool, wait time.Duration) {
	r.result.Offered += a.Cost
	r.bucket(a.At).Offered += a.Cost
	if isAdmitted {
		r.admit(c, a, wait)
		return
	}
	r.result.Denied += a.Cost
	r.bucket(a.At).Denied += a.Cost
	if !c.denied {
		c.denied, c.since = true, a.At
	}
	r.result.Lockout = max(r.result.Lockout, time.Duration(a.At-c.since)*time.Microsecond)
}

func (r *run) admit(c *counter, a Arrival, wait time.Duration) {
	at := a.At + wait.Microseconds()
	c.denied = false
	r.admitted++
	r.waited += wait
	r.result.LongestWait = max(r.result.LongestWait, wait)
	r.result.Admitted += a.Cost
	r.bucket(at).Admitted += a.Cost
	if r.policy.Algorithm() != limiter.Concurrency {
		c.passed = append(c.passed, pass{at, a.Cost, c})
		return
	}
	r.running = append(r.running, pass{at + r.options.Duration.Microseconds(), a.Cost, c})
	c.inFlight += a.Cost
	r.result.Worst = max(r.result.Worst, c.inFlight)
}

// giveBack ends the requests of a concurrency limit that end until now.
func (r *run) giveBack(now int64) {
	for len(r.running) > 0 && r.running[0].at <= now {
		ended := r.running[0]
		r.running = r.running[1:]
		ended.of.inFlight -= ended.cost
		ended.of.state, _ = r.policy.Step(ended.of.state, r.start+ended.at, -ended.cost)
	}
}

// finish completes the result of requests that cost dearest hits at most.
func (r *run) finish(dearest int64) *Result {
	if r.admitted > 0 {
		r.result.MeanWait = (r.waited / time.Duration(r.admitted)).Truncate(time.Microsecond)
	}
	for _, c := range r.counters {
		r.result.Worst = max(r.result.Worst, worst(c.passed, r.policy.Window().Microseconds()))
	}
	r.result.Bound = Bound(r.policy, dearest)
	if r.shortWindow() {
		r.result.Bound += r.policy.Limit()
	}
	return r.result
}

// bucket is where hits at a time are counted.
func (r *run) bucket(at int64) *Bucket {
	i := int(at / r.options.Bucket.Microseconds())
	if missing := i + 1 - len(r.result.Buckets); missing > 0 {
		r.result.Buckets = append(r.result.Buckets, make([]Bucket, missing)...)
	}
	return &r.result.Buckets[i]
}

// worst is the most that passed within any window [t, t+w).
func worst(passed []pass, w int64) (most int64) {
	slices.SortStableFunc(passed, func(a, b pass) int { return int(a.at - b.at) })
	sum, first := int64(0), 0
	for _, p := range passed {
		sum += p.cost
		for ; passed[first].at <= p.at-w; first++ {
			sum -= passed[first].cost
		}
		most = max(most, sum)
	}
	return most
}

// Bound is the most that can pass in any window of the limit if no request costs more than dearest hits.
func Bound(p *limiter.Policy, dearest int64) int64 {
	n := p.Limit()
	if n == 0 {
		return 0
	}
	switch p.Algorithm() {
	case limiter.FixedWindow:
		return 2 * n
	case limiter.Funnel, limiter.TokenBucket:
		return p.Capacity() + n
	case limiter.SlidingWindow:
		if p.Oldest() == limiter.OldestFull {
			return n
		}
		return n + p.Capacity() // what the oldest segment had and no longer counts
	case limiter.SmoothBursty:
		// What was saved is the capacity without the requests that wait; the last one is paid for later.
		waiting := int64(float64(n) * p.MaxWait().Seconds() / p.Window().Seconds())
		return n + p.Capacity() - waiting + dearest - 1
	case limiter.LeakyQueue, limiter.SmoothWarmingUp:
		return n + dearest
	default:
		return n
	}
}

// widths are the bucket widths that people like to read.
var widths = []time.Duration{
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour,
}

// columns is the most buckets that a chart shows.
const columns = 60

// BucketWidth is a readable width of which at most 60 make length.
func BucketWidth(length time.Duration) time.Duration {
	for _, w := range widths {
		if length <= columns*w {
			return w
		}
	}
	day := widths[len(widths)-1]
	return time.Duration(ceilDiv(int64(length), int64(columns*day))) * day
}

// ceilDiv divides a >= 0 by b > 0, rounding up.
func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }
