// Package decide says whether a request may pass: it knows the rules, the limits and their counters, and no wire
// format. Every way into Weir (Envoy's RateLimitService, explain, replayed traffic) translates what it reads into a
// Request, calls Decider.Decide, and reports the Verdict. Whoever must not wait calls Decider.Try first.
//
// A decision has three steps. Match finds the rules and limits of the request's descriptors. Take asks the store, which
// decides all hits of the request as a whole. Fold makes one status for each descriptor of the answers.
package decide

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/internal/take"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// Defaults of Options.
const (
	// DefaultMaxDescriptors bounds the work of one request. Envoy's configuration decides how many descriptors
	// it sends, usually a handful, so this only stops mistakes.
	DefaultMaxDescriptors = 128
	// DefaultMaxEntries bounds a descriptor's depth, which Envoy's configuration decides as well. Envoy Gateway writes
	// 144 entries at most.
	DefaultMaxEntries = 2048
	// DefaultMaxEntryBytes is above the 60 KiB of request headers that Envoy admits by default. A longer key or value
	// is an error to Envoy, which then lets the request pass by default: a client must not be able to evade its limit
	// by a long header.
	DefaultMaxEntryBytes = 64 << 10
	// DefaultMaxCounters bounds the counters that one request charges. The rules decide how many these are. So many take
	// Redis about 5 ms, in which it does nothing else, of the 15 ms that the store has by default.
	DefaultMaxCounters = 1024
	// DefaultMaxDelayed bounds the requests that leaky_queue and max_wait delay. Each of them holds a goroutine and a
	// stream of a few KiB.
	DefaultMaxDelayed = 10_000
)

// ErrNoRules is returned while no rules are loaded.
var ErrNoRules = errors.New("no rules are loaded yet")

// ErrPanicked is that of a request whose decision has panicked beside others'.
var ErrPanicked = errors.New("the decision has panicked; the log has the stack")

// ErrUndecided is returned while the store does not answer, for a request with a limit whose on_store_failure is error:
// the caller decides.
var ErrUndecided = errors.New("the store did not answer, and on_store_failure is error")

// InvalidError says which part of a request is wrong, and what to send instead.
type InvalidError struct{ Msg string }

// Error is the message.
func (e *InvalidError) Error() string { return e.Msg }

func invalid(format string, args ...any) error { return &InvalidError{fmt.Sprintf(format, args...)} }

// Options are a Decider's parts and bounds. A zero bound stands for its default.
type Options struct {
	Config

	// Rules returns the rules in force: called once a request. A nil Set means that none are loaded yet.
	Rules func() *descriptors.Set
	// Store has the counters. It bounds the time of a call itself. If it is a take.Chain, Try asks its stages.
	Store limiter.Store
	// Local counts this process's share of limits with on_store_failure: local while Store fails, and of all limits of
	// requests that this process is too late for. Nil, for a Store that never fails, lets their requests pass.
	Local limiter.Store
	// Observer counts decisions. Nil is none.
	Observer Observer
	// Watchers see every request that was decided.
	Watchers []Watcher
	// Lenient admits descriptors without entries and entries without a key: they match no rule. Without it, they are
	// errors.
	Lenient bool
	// MaxEntries is the most entries of a descriptor.
	MaxEntries int
	// MaxEntryBytes is the most bytes of an entry's key, and of its value.
	MaxEntryBytes int
}

func (o *Options) validate() error {
	var errs []error
	if o.Rules == nil {
		errs = append(errs, errors.New("decide: Options.Rules: must be set"))
	}
	if o.Store == nil {
		errs = append(errs, errors.New("decide: Options.Store: must be set"))
	}
	if !o.RatelimitHeaders {
		o.LimitHeaders = LimitHeaders{}
	}
	o.MaxDescriptors = cmp.Or(o.MaxDescriptors, DefaultMaxDescriptors)
	o.MaxEntries = cmp.Or(o.MaxEntries, DefaultMaxEntries)
	o.MaxCounters = cmp.Or(o.MaxCounters, DefaultMaxCounters)
	o.MaxEntryBytes = cmp.Or(o.MaxEntryBytes, DefaultMaxEntryBytes)
	o.MaxDelayed = cmp.Or(o.MaxDelayed, DefaultMaxDelayed)
	if o.Observer == nil {
		o.Observer = unobserved{}
	}
	return errors.Join(errs...)
}

// Decider decides requests. It is safe for concurrent use.
type Decider struct {
	o       Options
	chain   *take.Chain // of Options.Store
	delayed delayed
	denier  *limiter.Policy // admits nothing
	batches sync.Pool       // of *batch
}

// New checks the options.
func New(o Options) (*Decider, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	denier, err := limiter.NewPolicy(limiter.Params{Algorithm: limiter.FixedWindow, DenyAll: true, Window: time.Second})
	if err != nil {
		return nil, err
	}
	return &Decider{
		o: o, chain: take.Of(o.Store), delayed: delayed{most: int64(o.MaxDelayed)}, denier: denier,
		batches: sync.Pool{New: func() any { return new(batch) }},
	}, nil
}

// Decide decides requests, each as a whole: either all of its limits are charged or none, as storekit.Decide has it;
// with Options.ChargeEach each limit is charged by itself. It returns when each request has its Verdict, or its Err: an
// InvalidError, ErrNoRules, ErrUndecided, limiter.ErrShed, ErrPanicked if several are decided together, or Ctx's own
// error once Ctx is done. A request with an Err holds nothing; of another one the caller takes what it holds
// (TakeHeld). The verdict is valid until the request is Reset.
//
// While the store fails, each limit's on_store_failure decides in its place.
func (d *Decider) Decide(all ...*Request) {
	b, _ := d.batches.Get().(*batch) // New makes nothing else
	taken := false
	defer func() {
		d.free(b)
		for i := 0; !taken && i < len(all); i++ { // the store has panicked
			all[i].Verdict.held.Release(all[i].Ctx)
		}
	}()
	for _, r := range all {
		r.call.Ctx = r.Ctx // the caller may have set it after Try
		if r.isTried || d.guarded(len(all), r, d.ask) && r.asks {
			b.calls = append(b.calls, &r.call)
		}
	}
	if len(b.calls) > 0 {
		d.chain.TakeAll(b.calls)
	}
	taken = true
	for _, r := range all {
		if r.Err == nil {
			d.guarded(len(all), r, d.end)
		}
	}
}

// Try decides a request if the store need not be waited for, and reports whether it is decided: as by Decide. If not,
// the caller passes the request to Decide.
func (d *Decider) Try(r *Request) (decided bool) {
	if d.ask(r); r.asks && !d.chain.Try(&r.call) {
		r.isTried = true
		return false
	}
	if r.Err == nil {
		d.end(r)
	}
	return true
}

// batch is the calls of a Decide.
type batch struct{ calls []*take.Call }

func (d *Decider) free(b *batch) {
	clear(b.calls)
	b.calls = b.calls[:0]
	d.batches.Put(b)
}

// guarded has a panic about one of several requests fail that one alone. It reports whether the request has no Err.
func (d *Decider) guarded(requests int, r *Request, step func(*Request)) bool {
	if requests == 1 {
		step(r)
	} else if panics.Catch("request", func() { step(r) }) {
		r.Err = ErrPanicked
	}
	return r.Err == nil
}

// ask finds what the store is to be asked, if anything: else the request's Err, or its answers, are there.
func (d *Decider) ask(r *Request) {
	r.asks, r.isTried, r.Err, r.call.Err = false, false, nil, nil
	rules := d.o.Rules()
	if rules == nil {
		r.Err = ErrNoRules
		return
	}
	var v *Verdict
	if v, r.Err = d.Match(rules, r); r.Err != nil || len(v.Hits) == 0 {
		return
	}
	if r.Err = r.Ctx.Err(); r.Err != nil {
		return
	}
	v.asked = part{hits: v.Hits, out: v.Decisions}
	if v.anyHit(canWait) {
		if d.delayed.add() {
			v.held.delayed = &d.delayed
		} else {
			v.refuse()
		}
	}
	r.asks = len(v.asked.hits) > 0
	r.call = take.Call{Call: storekit.Call{Ctx: r.Ctx, Since: r.Since, Hits: v.asked.hits, Out: v.asked.out}}
}

// end makes the verdict of what the store has answered, and shows it to the Observer and the Watchers.
func (d *Decider) end(r *Request) {
	v, ends := &r.Verdict, false
	r.isTried = false
	defer func() {
		if !ends { // after an error, and if an observer panics
			v.held.Release(r.Ctx)
		}
	}()
	if r.Err = d.settle(r); r.Err != nil {
		return
	}
	v.fold()
	v.held.wait, v.held.denied = v.Wait, v.Denied
	if v.Wait == 0 && v.held.delayed != nil {
		v.held.delayed.now.Add(-1)
		v.held.delayed = nil
	}
	d.observe(r.Ctx, v)
	ends = true
}

// settle has the decisions of all hits, by failure policies if the store has failed.
func (d *Decider) settle(r *Request) error {
	v, err := &r.Verdict, r.call.Err
	if err == nil {
		v.asked.scatter(v.Decisions)
		v.hold(d.chain, v.asked.hits, v.asked.out)
		return nil
	}
	switch gone := r.Ctx.Err(); {
	case gone != nil:
		return gone
	case errors.Is(err, limiter.ErrShed) && !v.refused:
		return limiter.ErrShed
	}
	d.o.Observer.StoreFailed(err)
	if v.refused { // what it refunds is lost, and nothing else was asked
		return nil
	}
	d.applyFailurePolicy(r.Ctx, v, err)
	if v.isUndecided() {
		return ErrUndecided
	}
	return nil
}
