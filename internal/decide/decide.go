// Package decide decides whether a request may pass. It knows rules, limits and counters, but no wire format: each
// source of requests (Envoy's RateLimitService, explain, replayed traffic) fills a Request, calls Decider.Decide, and
// reports the Verdict. A caller that must not wait calls Decider.Try first.
//
// A decision has three steps. Match finds the rules and limits of the request's descriptors. Take queries the store,
// which decides all hits of the request as a whole. Fold combines the decisions into one status per descriptor.
package decide

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/internal/take"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// Defaults of Options.
const (
	// DefaultMaxDescriptors bounds the work per request. It only stops mistakes, because the number of descriptors depends
	// on Envoy's configuration and is usually below ten.
	DefaultMaxDescriptors = 128
	// DefaultMaxEntries bounds the entries of a descriptor. Envoy Gateway configures at most 144.
	DefaultMaxEntries = 2048
	// DefaultMaxEntryBytes is above the 60 KiB of request headers that Envoy accepts by default. Weir returns an error for
	// a longer key or value. By default, Envoy then admits the request, so a client could evade its limit.
	DefaultMaxEntryBytes = 64 << 10
	// DefaultMaxCounters bounds the counters that one request charges. 1,024 counters block Redis for about 5 ms; the
	// default timeout of the store is 15 ms.
	DefaultMaxCounters = 1024
	// DefaultMaxDelayed bounds the delayed requests, each of which holds a goroutine and a stream of a few KiB.
	DefaultMaxDelayed = 10_000
)

// ErrNoRules means that no rules are loaded.
var ErrNoRules = errors.New("no rules are loaded yet")

// ErrPanicked means that the decision of this request, one of several in a Decide call, panicked.
var ErrPanicked = errors.New("the decision panicked; the log has the stack")

// ErrUndecided means that the store did not respond, and a limit leaves the decision to the caller.
var ErrUndecided = errors.New("the store did not respond, and on_store_failure is error")

// InvalidError says which part of a request is invalid, and what to send instead.
type InvalidError struct{ Msg string }

// Error returns Msg.
func (e *InvalidError) Error() string { return e.Msg }

func invalid(format string, args ...any) error { return &InvalidError{fmt.Sprintf(format, args...)} }

// Options are the settings of a Decider. A bound of 0 means the default.
type Options struct {
	Config

	// Rules returns the active rules, nil if none are loaded yet. It is called once per request.
	Rules func() *descriptors.Set
	// Store has the counters and bounds the duration of each call. If it is a take.Chain, Try uses its stages.
	Store limiter.Store
	// Local counts this process's share of limits with on_store_failure: local while Store fails, and of all limits if
	// this process was too late to read Store's response. If Local is nil, these limits admit.
	Local limiter.Store
	// Observer counts decisions. It may be nil.
	Observer Observer
	// Watchers see every decided request.
	Watchers []Watcher
	// Unasked reports whether the store surely ran no part of a call of so many hits that failed with err, so that the
	// call may be repeated. If it is nil, no call may.
	Unasked func(err error, hits int) bool
	// Lenient accepts descriptors without entries and entries without a key, which match no rule.
	Lenient bool
	// MaxEntries is the maximum number of entries per descriptor.
	MaxEntries int
	// MaxEntryBytes is the maximum length in bytes of an entry's key, and of its value.
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
	retried atomic.Int64    // ends that are sent again
	denier  *limiter.Policy // policy that admits nothing
	batches sync.Pool       // elements are *batch
}

// New returns a Decider. The error names the invalid options.
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

// Decide decides requests. Each request is decided as a whole: either all of its limits are charged or none, see
// storekit.Decide. With Options.ChargeEach each limit is charged independently. Decide returns when each request has a
// Verdict or an Err: an InvalidError, ErrNoRules, ErrUndecided, limiter.ErrShed, ErrPanicked (only if several requests
// are decided together), or the error of Ctx once Ctx is done. A request with an Err holds nothing; for each other
// request, the caller must call Verdict.TakeHeld and Release. The verdict is valid until the request is Reset.
//
// While the store fails, each limit's on_store_failure decides. An end of a request with a reservation is then lost, or
// sent again later: see Options.Unasked.
func (d *Decider) Decide(all ...*Request) {
	b, _ := d.batches.Get().(*batch) // the pool holds only *batch
	taken := false
	defer func() {
		d.free(b)
		if !taken {
			d.abandon(all)
		}
	}()
	for _, r := range all {
		r.call.Ctx = r.Ctx // the caller may have set Ctx after Try
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

// Try decides a request like Decide if that needs no wait for the store, and reports whether it did. If it returns
// false, the caller must pass the request to Decide.
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

// abandon releases what the requests hold after the store or a stage panicked.
func (d *Decider) abandon(all []*Request) {
	for _, r := range all {
		v := &r.Verdict
		if r.asks && r.call.Err == nil { // asked.out may have decisions
			v.hold(d.chain, v.asked.hits, v.asked.out)
		}
		v.held.Release(r.Ctx)
	}
}

// batch holds the calls of one Decide.
type batch struct{ calls []*take.Call }

func (d *Decider) free(b *batch) {
	clear(b.calls)
	b.calls = b.calls[:0]
	d.batches.Put(b)
}

// guarded runs step and reports whether r has no Err afterwards. With several requests, a panic fails only r.
func (d *Decider) guarded(requests int, r *Request, step func(*Request)) bool {
	if requests == 1 {
		step(r)
	} else if panics.Catch("request", func() { step(r) }) {
		r.Err = ErrPanicked
	}
	return r.Err == nil
}

// ask prepares the call to the store. If no call is needed, ask sets the request's Err or its decisions.
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
	if slices.ContainsFunc(v.reserved, func(e reserved) bool { return e.unsent }) {
		v.askSome(func(i int) bool { return !v.isUnsent(i) })
	}
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

// end completes the verdict from the store's decisions, and reports it to the Observer and the Watchers.
func (d *Decider) end(r *Request) {
	v, ends := &r.Verdict, false
	r.isTried = false
	defer func() {
		if !ends { // after an error or a panic of an observer
			v.held.Release(r.Ctx)
		}
	}()
	if r.Err = d.settle(r); r.Err != nil {
		return
	}
	v.fold()
	v.held.wait, v.held.denied = v.Wait, v.Denied
	d.o.Observer.Answered(v.Domain, v.Denied)
	for i, l := range v.Limits {
		if !v.unasked(i) {
			d.o.Observer.Decided(l, v.Outcome(i), v.Hits[i].N, &v.Decisions[i])
		}
	}
	for i := range v.reserved {
		if e := &v.reserved[i]; e.role == corrects {
			d.o.Observer.Ended(v.Limits[i], e.charged, e.spent)
		}
	}
	for _, w := range d.o.Watchers {
		w.Watch(r.Ctx, v)
	}
	ends = true
}

// settle sets the decisions of all hits. If the store failed, failure policies decide.
func (d *Decider) settle(r *Request) error {
	v, err := &r.Verdict, r.call.Err
	if err == nil {
		v.asked.scatter(v.Decisions)
		v.hold(d.chain, v.asked.hits, v.asked.out)
		v.completeReserved()
		return nil
	}
	if len(v.reserved) > 0 {
		d.sendEndsLater(v, err)
	}
	switch gone := r.Ctx.Err(); {
	case gone != nil:
		return gone
	case errors.Is(err, limiter.ErrShed) && !v.refused:
		return limiter.ErrShed
	}
	d.o.Observer.StoreFailed(err)
	if v.refused { // only refunds and ends were sent to the store, and these refunds are lost
		v.completeReserved()
		return nil
	}
	d.applyFailurePolicy(r.Ctx, v, err)
	if v.isUndecided() {
		return ErrUndecided
	}
	return nil
}
