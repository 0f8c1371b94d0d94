package rlqs

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// fakeEnvoy does what the quota filter of Envoy 1.40 does (docs/adr/0077): all buckets are reported every five seconds,
// a new one at once, and a token bucket refills continuously.
type fakeEnvoy struct {
	fleet  *fleet
	keeper *Keeper // that it reports to
	host   string
	delay  time.Duration // until a message arrives
	stream *Stream       // nil: broken
	first  time.Duration // when its first bucket began; -1 before
	next   time.Duration // next report
	demand map[BucketID]func(at time.Duration) float64
	todo   map[BucketID]float64
	passed int64

	buckets map[BucketID]*fakeBucket
	inbox   []message
}

type message struct {
	at          time.Duration
	assignments []Assignment
}

// fakeBucket is a bucket of an Envoy.
type fakeBucket struct {
	has             Assignment
	isAssigned      bool
	tokens          float64
	at, expires     time.Duration
	allowed, denied uint64
	reported        time.Duration
}

// receive takes what the keeper has sent.
func (e *fakeEnvoy) receive(now time.Duration) {
	if e.stream == nil {
		return
	}
	if all := e.stream.take(); len(all) > 0 {
		e.fleet.messages++
		e.inbox = append(e.inbox, message{now + e.delay, all})
	}
}

// connect opens a stream; the buckets are reported with the next report.
func (e *fakeEnvoy) connect() { e.stream = e.keeper.Open(e.host, "shop") }

// disconnect breaks the stream; reconnect is where the next one comes from.
func (e *fakeEnvoy) disconnect() {
	e.stream.Close()
	e.stream = nil
	e.inbox = nil
}

// apply takes the messages that have arrived.
func (e *fakeEnvoy) apply(now time.Duration) {
	e.receive(now)
	for len(e.inbox) > 0 && e.inbox[0].at <= now {
		for _, a := range e.inbox[0].assignments {
			if b := e.buckets[a.ID]; b != nil {
				if a.Strategy == Abandon {
					delete(e.buckets, a.ID)
					continue
				}
				b.assign(a, now)
			}
		}
		e.inbox = e.inbox[1:]
	}
}

func (b *fakeBucket) assign(a Assignment, now time.Duration) {
	b.refill(now)
	isSame := b.isAssigned && a.Strategy == b.has.Strategy && a.MaxTokens == b.has.MaxTokens && a.PerFill == b.has.PerFill
	switch {
	case a.Strategy != TokenBucket || isSame:
	case b.isAssigned && b.has.Strategy == TokenBucket:
		b.tokens = math.Floor(float64(a.MaxTokens) * b.tokens / float64(b.has.MaxTokens))
	default:
		b.tokens = float64(a.MaxTokens)
	}
	if !isSame {
		b.has = a
	}
	b.isAssigned, b.expires = true, now+a.TTL
}

func (b *fakeBucket) refill(now time.Duration) {
	if b.isAssigned && now >= b.expires {
		b.isAssigned = false
	}
	if b.isAssigned && b.has.Strategy == TokenBucket {
		b.tokens = min(float64(b.has.MaxTokens), b.tokens+b.has.rate()*(now-b.at).Seconds())
	}
	b.at = now
}

// request decides n requests.
func (e *fakeEnvoy) request(id BucketID, n int, now time.Duration) {
	b := e.buckets[id]
	if b == nil {
		if n == 0 {
			return
		}
		b = &fakeBucket{at: now, reported: now}
		e.buckets[id] = b
		if e.first < 0 {
			e.first, e.next = now, now+interval
			if e.stream == nil {
				e.connect()
			}
		}
		e.fleet.pass(now, 1, false)
		n--
		if e.stream != nil {
			e.stream.Report([]Usage{{ID: id, Allowed: 1}})
		}
	}
	b.refill(now)
	allowed := n
	switch {
	case !b.isAssigned:
		if e.fleet.denyUnassigned {
			allowed = 0
		}
	case b.has.Strategy == DenyAll:
		allowed = 0
	case b.has.Strategy == TokenBucket:
		allowed = min(n, int(b.tokens+1e-9))
		b.tokens -= float64(allowed)
	}
	b.allowed += uint64(allowed)
	b.denied += uint64(n - allowed)
	e.passed += int64(allowed)
	e.fleet.pass(now, allowed, b.isAssigned && b.has.Strategy == TokenBucket)
}

// advance does what the Envoy does in the time until now.
func (e *fakeEnvoy) advance(now, since time.Duration) {
	e.apply(now)
	ids := make([]BucketID, 0, len(e.demand))
	for id := range e.demand {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		e.todo[id] += e.demand[id](now) * since.Seconds()
		n := math.Floor(e.todo[id])
		e.todo[id] -= n
		e.request(id, int(n), now)
	}
	if e.first < 0 || now < e.next {
		return
	}
	e.next += interval
	if e.stream == nil {
		if e.fleet.isUnreachable {
			return
		}
		e.connect()
	}
	var usages []Usage
	for id, b := range e.buckets {
		usages = append(usages, Usage{
			ID: id, Allowed: b.allowed, Denied: b.denied, Elapsed: (now - b.reported).Truncate(time.Second),
		})
		b.allowed, b.denied, b.reported = 0, 0, now
	}
	e.stream.Report(usages)
}

// fleet is Envoys, keepers and their store, in virtual time.
type fleet struct {
	t       *testing.T
	start   time.Time
	store   *ledger
	rules   *fakeRules
	keeper  *Keeper // the newest one
	running []runningKeeper
	envoys  []*fakeEnvoy

	denyUnassigned bool
	isUnreachable  bool

	admitted []admission
	passed   int64 // sum of admitted
	covered  int64 // of those, requests that passed by a token bucket
	// mostAhead is the highest number that passed by token buckets in any span of time beyond what was charged in it.
	mostAhead, leastAhead int64

	beside int64   // requests that the rate limit service let pass; they are in admitted
	calls  float64 // requests a second that come to it
	todo   float64 // of these

	messages int

	mu      sync.Mutex
	decided map[string]float64 // requests by key.outcome and by key, and those of first limits as first
}

// runningKeeper is a keeper whose Run has not been ended.
type runningKeeper struct {
	*Keeper

	end func()
}

// admission is n requests that passed.
type admission struct {
	at time.Duration
	n  int64
}

// fakeRules resolves buckets to limits.
type fakeRules struct {
	mu      sync.Mutex
	resolve func(domain string, id BucketID) Target
}

// Resolve is an Options.Resolve. It gives limits to hits that have none.
func (r *fakeRules) Resolve(domain string, id BucketID) Target {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.resolve(domain, id)
	for len(t.Limits) < len(t.Hits) {
		t.Limits = append(t.Limits, &descriptors.Limit{})
	}
	return t
}

func (r *fakeRules) set(f func(domain string, id BucketID) Target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resolve = f
}

// ledger is a store that counts what the keeper charged.
type ledger struct {
	*memstore.Store
	mu      sync.Mutex
	charged int64
	err     error
	late    func() time.Duration // how long a hit takes to arrive, and its answer, if set
}

// Take implements limiter.Store.
func (l *ledger) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	l.mu.Lock()
	err := l.err
	l.mu.Unlock()
	if err != nil {
		return err
	}
	if l.late != nil {
		time.Sleep(l.late())
		defer func() { time.Sleep(l.late()) }()
	}
	if err := l.Store.Take(ctx, hits, out); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if limiter.Admitted(hits, out) && out[0].Allowed && !strings.HasPrefix(hits[0].Key, "quota_") {
		l.charged += hits[0].N // several limits of one request are one charge
	}
	return nil
}

// lateUpTo returns different times.
func lateUpTo(most time.Duration) func() time.Duration {
	var n atomic.Int64
	return func() time.Duration { return time.Duration(n.Add(1)) * 700 * time.Microsecond % most }
}

func (l *ledger) sum() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.charged
}

func (l *ledger) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

func policyOf(tb testing.TB, in limiter.Params) *limiter.Policy {
	tb.Helper()
	in.DenyAll = in.Limit == 0 // a test means it
	p, err := limiter.NewPolicy(in)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// one resolves all buckets to one limit.
func one(p *limiter.Policy) func(string, BucketID) Target {
	return func(string, BucketID) Target { return Target{Hits: []limiter.Hit{{Key: "k", Policy: p}}} }
}

// newFleet makes a store, and a keeper if there are Envoys; close ends them.
func newFleet(t *testing.T, resolve func(string, BucketID) Target, envoys int) *fleet {
	t.Helper()
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{
		t: t, start: time.Now(), store: &ledger{Store: store}, rules: &fakeRules{resolve: resolve},
		decided: map[string]float64{},
	}
	if envoys > 0 {
		f.startKeeper()
	}
	for range envoys {
		f.add()
	}
	return f
}

// newKeeper makes a keeper.
func newKeeper(tb testing.TB, o Options) *Keeper {
	tb.Helper()
	o.Reported = func(uint64, uint64) {}
	k, err := New(o)
	if err != nil {
		tb.Fatal(err)
	}
	return k
}

// startKeeper starts one more keeper, which further Envoys report to.
func (f *fleet) startKeeper() {
	f.t.Helper()
	f.keeper = newKeeper(f.t, Options{
		Store: f.store, Resolve: f.rules.Resolve, Logger: slog.New(slog.DiscardHandler), Decided: f.count,
	})
	f.running = append(f.running, runningKeeper{f.keeper, run(f.keeper)})
}

// count sums what keepers hand on.
func (f *fleet) count(d Decided) {
	f.mu.Lock()
	defer f.mu.Unlock()
	names := []string{d.Key, d.Key + "." + d.Outcome.String()}
	if d.IsFirst {
		names = append(names, "first")
	}
	for _, name := range names {
		f.decided[name] += float64(d.Requests)
	}
}

// run runs a keeper until end is called.
func run(k *Keeper) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = k.Run(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

// add adds an Envoy that reports to the newest keeper.
func (f *fleet) add() *fakeEnvoy {
	e := &fakeEnvoy{
		fleet: f, keeper: f.keeper, host: strconv.Itoa(len(f.envoys)), delay: 3 * time.Millisecond, first: -1,
		buckets: make(map[BucketID]*fakeBucket),
		demand:  make(map[BucketID]func(time.Duration) float64), todo: make(map[BucketID]float64),
	}
	f.envoys = append(f.envoys, e)
	return e
}

// want sets how many requests a second come to each Envoy.
func (f *fleet) want(rate float64) {
	for _, e := range f.envoys {
		e.demand["b"] = steady(rate)
	}
}

// close ends the keepers and the store.
func (f *fleet) close() {
	for _, k := range f.running {
		k.end()
	}
	if err := f.store.Close(); err != nil {
		f.t.Error(err)
	}
}

func (f *fleet) now() time.Duration { return time.Since(f.start) }

func (f *fleet) pass(now time.Duration, n int, isCovered bool) {
	if n == 0 {
		return
	}
	if isCovered {
		f.covered += int64(n)
	}
	f.passed += int64(n)
	f.admitted = append(f.admitted, admission{now, int64(n)})
	f.leastAhead = min(f.leastAhead, f.covered-f.store.sum()-int64(n))
	f.mostAhead = max(f.mostAhead, f.covered-f.store.sum()-f.leastAhead)
}

const playStep = 5 * time.Millisecond

// play has the Envoys do what they do for so long.
func (f *fleet) play(long time.Duration) {
	for until := f.now() + long; f.now() < until; {
		time.Sleep(playStep)
		now := f.now()
		for _, e := range f.envoys {
			e.advance(now, playStep)
		}
		synctest.Wait()
		for f.todo += f.calls * playStep.Seconds(); f.todo >= 1; f.todo-- {
			f.ask(1)
		}
	}
}

// most is the highest number that passed in any span, from a time on.
func (f *fleet) most(span, from time.Duration) (most int64) {
	n, end := int64(0), 0
	for i, a := range f.admitted {
		for ; end < len(f.admitted) && f.admitted[end].at < a.at+span; end++ {
			n += f.admitted[end].n
		}
		if a.at >= from {
			most = max(most, n)
		}
		n -= f.admitted[i].n
	}
	return most
}

// between returns the number of requests admitted from one time to another.
func (f *fleet) between(from, to time.Duration) (n int64) {
	for _, a := range f.admitted {
		if a.at >= from && a.at < to {
			n += a.n
		}
	}
	return n
}

// assigned returns the rate of a bucket, of all Envoys.
func (f *fleet) assigned(id BucketID) (rate float64) {
	f.keeper.mu.Lock()
	defer f.keeper.mu.Unlock()
	f.keeper.eachClient(func(c *client) {
		if c.id == id {
			rate += c.rate
		}
	})
	return rate
}

// left returns the remaining hits of a counter.
func (f *fleet) left(h limiter.Hit) int64 {
	f.t.Helper()
	h.Peek, h.N, h.Mode = true, 0, limiter.Enforce
	out := make([]limiter.Decision, 1)
	if err := f.store.Store.Take(f.t.Context(), []limiter.Hit{h}, out); err != nil {
		f.t.Fatal(err)
	}
	return out[0].Remaining
}
