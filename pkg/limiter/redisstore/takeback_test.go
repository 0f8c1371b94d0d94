package redisstore_test

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/limitertest"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// flooded is a limit of 100 per second that other requests use while denied requests charge it and take that back.
type flooded struct {
	name   string
	params limiter.Params
	// larger makes room for more hits at once. It is nil where the bound is 200 hits in any second: two windows meet.
	larger func(in *limiter.Params, by int64)
	// exact: what is taken back leaves no trace at all. Else, what leaks in the meantime may be granted once more.
	exact bool
}

func moreLimit(in *limiter.Params, by int64) { in.Limit += by }
func moreBurst(in *limiter.Params, by int64) { in.Burst = 100 + by }
func moreWait(in *limiter.Params, by int64)  { in.MaxWait += time.Duration(by) * 10 * time.Millisecond }

func floodedLimits() []flooded {
	type params = limiter.Params
	const wait = 100 * time.Millisecond
	all := []flooded{
		{"fixed_window", params{Algorithm: limiter.FixedWindow}, moreLimit, true},
		{"fixed_window first_hit", params{Algorithm: limiter.FixedWindow, Align: limiter.AlignFirstHit}, nil, false},
		{"sliding_window", params{Algorithm: limiter.SlidingWindow}, moreLimit, true},
		{"sliding_window full", params{Algorithm: limiter.SlidingWindow, Oldest: limiter.OldestFull}, moreLimit, true},
		{"sliding_log", params{Algorithm: limiter.SlidingLog}, moreLimit, true},
		{"concurrency", params{Algorithm: limiter.Concurrency}, moreLimit, true},
		{"funnel", params{Algorithm: limiter.Funnel}, moreBurst, false},
		{"token_bucket", params{Algorithm: limiter.TokenBucket}, moreBurst, false},
		{"token_bucket empty", params{Algorithm: limiter.TokenBucket, StartsEmpty: true}, moreBurst, false},
		{"token_bucket interval", params{Algorithm: limiter.TokenBucket, RefillsAtOnce: true}, nil, false},
		{"smooth_bursty", params{Algorithm: limiter.SmoothBursty, MaxWait: wait}, moreWait, false},
		{"leaky_queue", params{Algorithm: limiter.LeakyQueue}, moreBurst, false},
		{"smooth_warming_up", params{Algorithm: limiter.SmoothWarmingUp, MaxWait: wait, WarmUp: 10 * wait}, moreWait, false},
	}
	for i := range all {
		all[i].params.Limit, all[i].params.Window, all[i].params.ChargeDenied = 100, time.Second, limiter.ChargeNone
	}
	return all
}

// TestTakeBackBound lets denied requests charge a limit and take that back, some of them at a time, while other
// requests use the limit: a trickle, and bursts far above it. It compares with a store that undoes a denied request
// completely, and with the limit's bound. docs/adr/0050 has figures of a longer run.
func TestTakeBackBound(t *testing.T) {
	t.Parallel()
	server, clock := redistest.Start(t), limitertest.NewClock()
	stores := newTwoStores(t, server, clock)
	for _, f := range floodedLimits() {
		for _, atOnce := range casetest.Pick([]int{6}, []int{1, 20}) {
			t.Run(fmt.Sprintf("%s/%d at once", f.name, atOnce), func(t *testing.T) {
				clock.Advance(time.Hour)
				begin := clock.Now()
				p := policy(t, f.params)
				got, most := f.measure(t, clock, atOnce, stores.with(t, p))
				clock.Set(begin)
				ideal, _ := f.measure(t, clock, atOnce, &forgetful{policy: p, clock: clock})
				beyond := f.beyond(t, got)
				t.Logf("%d admitted, %d beyond the bound; ideal %d; denied requests held at most %d",
					admitted(got), beyond, admitted(ideal), most)
				if f.exact && !slices.Equal(got, ideal) {
					t.Error("other hits were admitted than if denied requests had never come")
				}
				if f.exact {
					most = 0
				}
				if beyond > most {
					t.Errorf("%d hits beyond the bound, want at most %d", beyond, most)
				}
			})
		}
	}
}

// taken is a number of hits that were admitted at a time, or refunded if n is below 0.
type taken struct{ at, n int64 }

func admitted(all []taken) (n int) {
	for _, h := range all {
		if h.n > 0 {
			n++
		}
	}
	return n
}

// beyond returns the number of hits by which a limit without other requests would have to be larger to admit all of
// these.
func (f *flooded) beyond(t *testing.T, all []taken) (by int64) {
	t.Helper()
	if f.larger == nil {
		for i, from := 0, 0; i < len(all); i++ {
			for all[from].at <= all[i].at-1_000_000 {
				from++
			}
			by = max(by, int64(i-from+1)-200)
		}
		return by
	}
	fits := func() bool {
		in := f.params
		if by > 0 {
			f.larger(&in, by)
		}
		p := policy(t, in)
		var state storekit.State
		if in.StartsEmpty {
			state, _ = storekit.Step(p, state, all[0].at-warmUp, 1)
		}
		for _, h := range all {
			var d limiter.Decision
			if state, d = storekit.Step(p, state, h.at, h.n); !d.Allowed {
				return false
			}
		}
		return true
	}
	for !fits() {
		by++
	}
	return by
}

// warmUp is the time before the measurement in which a bucket that starts empty becomes full, in microseconds.
const warmUp = 1_500_000

// Kinds of event.
const (
	charge = iota // step 1 of a denied request
	settle        // its step 2
	hit           // of others
	ends          // a request of others, under concurrency
)

type event struct {
	at   int64
	kind int
	id   int // of a denied request
	n    int64
}

// events is a heap of events, ordered by time.
type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at < e[j].at }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) } //nolint:errcheck,forcetypeassert // always one
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// stepper decides denied requests in their two steps, and the hits of other requests.
type stepper interface {
	charge(id int, n int64)
	settle(id int)
	hit(n int64) (allowed bool)
}

// measure returns the admitted hits of other requests, and the maximum that denied requests may have held at a time.
func (f *flooded) measure(t *testing.T, clock *limitertest.Clock, atOnce int, s stepper) (all []taken, most int64) {
	t.Helper()
	const between = 15 * time.Millisecond // the two steps
	rng := rand.New(rand.NewPCG(1, 2))
	begin := clock.Now()
	end := begin + casetest.Pick(1500*time.Millisecond, 20*time.Second).Microseconds()
	random := func(mean time.Duration) int64 { return 1 + int64(rng.ExpFloat64()*float64(mean.Microseconds())) }
	gap := between / time.Duration(atOnce)
	if atOnce == 1 {
		gap = 4 * between
	}
	var todo events
	for at := begin; at < end; at += random(gap) {
		todo = append(todo, event{at, charge, len(todo), 1 + rng.Int64N(3)})
	}
	for at := begin; at < end; at += random(20 * time.Millisecond) {
		todo = append(todo, event{at, hit, 0, 1})
	}
	for at := begin + 390_000; at < end; at += 800_000 { // some of them over the edge of a window
		for range 150 {
			todo = append(todo, event{at + rng.Int64N(20_000), hit, 0, 1})
		}
	}
	heap.Init(&todo)
	if f.params.StartsEmpty {
		clock.Set(begin - warmUp)
		s.hit(1)
	}
	held := map[int]int64{}
	for todo.Len() > 0 {
		e := heap.Pop(&todo).(event) //nolint:errcheck,forcetypeassert // always one
		clock.Set(e.at)
		switch e.kind {
		case charge:
			s.charge(e.id, e.n)
			held[e.id] = e.n
			most = max(most, sum(held))
			heap.Push(&todo, event{e.at + 1 + rng.Int64N(2*between.Microseconds()), settle, e.id, 0})
		case settle:
			s.settle(e.id)
			delete(held, e.id)
		case hit:
			if s.hit(e.n) {
				all = append(all, taken{e.at, e.n})
				if f.params.Algorithm == limiter.Concurrency && rng.IntN(20) > 0 { // of some the end is lost
					heap.Push(&todo, event{e.at + random(300*time.Millisecond), ends, 0, -1})
				}
			}
		case ends:
			s.hit(e.n)
			all = append(all, taken{e.at, e.n})
		}
	}
	return all, most
}

func sum(of map[int]int64) (n int64) {
	for _, v := range of {
		n += v
	}
	return n
}

// forgetful undoes a denied request completely in its second step: it replays the charges of the other requests.
type forgetful struct {
	policy  *limiter.Policy
	clock   *limitertest.Clock
	settled storekit.State
	since   []event // charges after that state, until the first one of a denied request that is not settled
}

func (s *forgetful) take(id int, n int64) bool {
	state := s.settled
	for _, c := range s.since {
		state, _ = storekit.Step(s.policy, state, c.at, c.n)
	}
	next, d := storekit.Step(s.policy, state, s.clock.Now(), n)
	if d.Allowed {
		s.since = append(s.since, event{at: s.clock.Now(), id: id, n: n})
	} else if len(s.since) == 0 {
		s.settled = next // a bucket that starts empty has begun
	}
	return d.Allowed
}

func (s *forgetful) charge(id int, n int64) { s.take(id, n) }
func (s *forgetful) hit(n int64) bool       { return s.take(-1, n) }
func (s *forgetful) settle(id int) {
	s.since = slices.DeleteFunc(s.since, func(c event) bool { return c.id == id })
	for len(s.since) > 0 && s.since[0].id < 0 {
		s.settled, _ = storekit.Step(s.policy, s.settled, s.since[0].at, s.since[0].n)
		s.since = s.since[1:]
	}
}

// twoStores calls Redis, for each concurrent denied request from a separate process. It reuses processes.
type twoStores struct {
	t               *testing.T
	open            func() *process
	idle            []*process
	busy            map[int]*process
	counter, denies limiter.Hit
}

func newTwoStores(t *testing.T, server *redistest.Server, clock *limitertest.Clock) *twoStores {
	t.Helper()
	options := redisstore.Options{Now: clock.Now, KeyPrefix: t.Name()}
	return &twoStores{
		busy: map[int]*process{},
		open: func() *process { return openProcess(t, server.SocketURL(), options) },
	}
}

// with prepares twoStores for a limit.
func (s *twoStores) with(t *testing.T, p *limiter.Policy) *twoStores {
	t.Helper()
	s.t = t
	s.counter = limiter.Hit{Key: t.Name() + " counter 0", Policy: p, N: 1}
	s.denies = limiter.Hit{Key: t.Name() + " ban 1", Policy: funnel(t, 0, time.Hour), N: 1}
	return s
}

// process returns an idle process, with open connections and the scripts of this limit.
func (s *twoStores) process() *process {
	if len(s.idle) == 0 {
		s.idle = append(s.idle, s.open())
	}
	p := s.idle[len(s.idle)-1]
	if p.asked != s.counter.Key {
		p.asked = s.counter.Key
		for _, h := range []limiter.Hit{s.counter, s.denies} {
			take(s.t, p.group, "look "+h.Key, h.Policy, 0)
		}
	}
	return p
}

func (s *twoStores) charge(id int, n int64) {
	p := s.process()
	s.idle, s.busy[id] = s.idle[:len(s.idle)-1], p
	h := s.counter
	h.N = n
	p.gated.Store(true)
	p.answer = ask(s.t.Context(), p.group, h, s.denies)
	<-p.waits
	<-p.charged
}

func (s *twoStores) settle(id int) {
	p := s.busy[id]
	delete(s.busy, id)
	p.gated.Store(false)
	p.release <- struct{}{}
	if got := <-p.answer; got.err != nil {
		s.t.Fatal(got.err)
	}
	s.idle = append(s.idle, p)
}

func (s *twoStores) hit(n int64) bool {
	return take(s.t, s.process().group, s.counter.Key, s.counter.Policy, n).Allowed
}

// process is a process with two stores. While it is gated, calls of the second store wait until they are released.
type process struct {
	group                   limiter.Store
	asked                   string // the last counter
	gated                   atomic.Bool
	charged, waits, release chan struct{}
	answer                  <-chan asked
}

func openProcess(t *testing.T, url string, o redisstore.Options) *process {
	t.Helper()
	p := &process{charged: make(chan struct{}, 1), waits: make(chan struct{}, 1), release: make(chan struct{})}
	first := open(t, url, o)
	o.KeyPrefix, o.Name = o.KeyPrefix+"second", "second"
	second := open(t, url, o)
	first.AddHook(redistest.Hook(func(_ []redis.Cmder, send func() error) error {
		err := send()
		if p.gated.Load() {
			p.charged <- struct{}{}
		}
		return err
	}))
	second.AddHook(redistest.Hook(func(_ []redis.Cmder, send func() error) error {
		if p.gated.Load() {
			p.waits <- struct{}{}
			<-p.release
		}
		return send()
	}))
	p.group = scattered{redisstore.NewGroup(first, map[string]*redisstore.Store{"second": second})}
	return p
}
