// Package decide says whether a request may pass: it knows the rules, the limits and their counters, and no wire
// format. Every way into Weir (Envoy's RateLimitService, explain, replayed traffic) translates what it reads into a
// Request, calls Decider.Decide, and reports the Verdict.
//
// A decision has three steps. Match finds the rules and limits of the request's descriptors. Take asks the store, which
// decides all hits of the request as a whole. Fold makes one status for each descriptor of the answers.
package decide

import (
	"context"
	"errors"
	"fmt"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
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
	// Rules returns the rules in force: called once a request. A nil Set means that none are loaded yet.
	Rules func() *descriptors.Set
	// Store has the counters. It bounds the time of a call itself.
	Store limiter.Store
	// Local counts this process's share of limits with on_store_failure: local while Store fails, and of all limits of
	// requests that this process is too late for. Nil, for a Store that never fails, lets their requests pass.
	Local limiter.Store
	// Observer counts decisions. Nil is none.
	Observer Observer
	// Watchers see every request that was decided.
	Watchers []Watcher
	// LimitHeaders are the response headers that show the nearest limit to a client. The zero value is none.
	LimitHeaders LimitHeaders
	// NoRetryAfter leaves the header Retry-After out of denials.
	NoRetryAfter bool
	// ChargeEach charges each limit of a request by itself, also when another one denies the request.
	ChargeEach bool
	// Lenient admits descriptors without entries and entries without a key: they match no rule. Without it, they are
	// errors.
	Lenient bool
	// MaxDescriptors is the most descriptors of a request.
	MaxDescriptors int
	// MaxEntries is the most entries of a descriptor.
	MaxEntries int
	// MaxCounters is the most limits that all descriptors of a request may have together.
	MaxCounters int
	// MaxEntryBytes is the most bytes of an entry's key, and of its value.
	MaxEntryBytes int
	// MaxDelayed is the most requests that are delayed at once. Beyond it, a request that might have to wait is denied
	// and not charged.
	MaxDelayed int
}

func (o *Options) validate() error {
	var errs []error
	if o.Rules == nil {
		errs = append(errs, errors.New("decide: Options.Rules: must be set"))
	}
	if o.Store == nil {
		errs = append(errs, errors.New("decide: Options.Store: must be set"))
	}
	if h := o.LimitHeaders; h != (LimitHeaders{}) && (h.Limit == "" || h.Remaining == "" || h.Reset == "") {
		errs = append(errs, fmt.Errorf("decide: Options.LimitHeaders: must all be set, or none; got %+v", h))
	}
	bounds := []struct {
		name  string
		value *int
		def   int
	}{
		{"MaxDescriptors", &o.MaxDescriptors, DefaultMaxDescriptors},
		{"MaxEntries", &o.MaxEntries, DefaultMaxEntries},
		{"MaxCounters", &o.MaxCounters, DefaultMaxCounters},
		{"MaxEntryBytes", &o.MaxEntryBytes, DefaultMaxEntryBytes},
		{"MaxDelayed", &o.MaxDelayed, DefaultMaxDelayed},
	}
	for _, b := range bounds {
		if *b.value < 0 {
			errs = append(errs, fmt.Errorf("decide: Options.%s: must be at least 1, or 0 for %d; got %d",
				b.name, b.def, *b.value))
		}
		if *b.value == 0 {
			*b.value = b.def
		}
	}
	if o.Observer == nil {
		o.Observer = unobserved{}
	}
	return errors.Join(errs...)
}

// Decider decides requests. It is safe for concurrent use.
type Decider struct {
	o      Options
	slots  delaySlots
	denier *limiter.Policy // admits nothing
}

// New checks the options.
func New(o Options) (*Decider, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	denier, err := newDenier()
	if err != nil {
		return nil, err
	}
	return &Decider{o: o, slots: delaySlots{most: int64(o.MaxDelayed)}, denier: denier}, nil
}

// Decide decides a request as a whole: either all of its limits are charged or none, as limiter.Decide has it; with
// Options.ChargeEach each limit is charged by itself. A denied request holds no places of limits on requests in flight:
// what a limit that counts it by itself has given it is given back.
//
// The verdict is valid until the request is Reset. The caller Waits for the verdict's Delay before it answers, and Ends
// it.
//
// While the store fails, each limit's on_store_failure decides in its place.
//
// Errors are an InvalidError, ErrNoRules, ErrUndecided, limiter.ErrShed, and ctx's own error once ctx is done.
func (d *Decider) Decide(ctx context.Context, r *Request) (*Verdict, error) {
	rules := d.o.Rules()
	if rules == nil {
		return nil, ErrNoRules
	}
	if _, err := d.Match(rules, r); err != nil {
		return nil, err
	}
	return d.DecideRest(ctx, r)
}

// take has the store decide all hits at once. Failure policies decide if it does not answer.
func (d *Decider) take(ctx context.Context, v *Verdict) error {
	if len(v.Hits) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if v.anyHit(canWait) {
		if !d.slots.acquire() {
			return d.refuse(ctx, v)
		}
		v.slot = &d.slots
	}
	if err := d.o.Store.Take(ctx, v.Hits, v.Decisions); err != nil {
		return d.fallBack(ctx, v, err, ctx.Err())
	}
	return nil
}

// fallBack decides by failure policies, because the store failed, unless the caller is gone.
func (d *Decider) fallBack(ctx context.Context, v *Verdict, err, gone error) error {
	if gone != nil {
		return gone
	}
	if errors.Is(err, limiter.ErrShed) {
		return limiter.ErrShed
	}
	d.o.Observer.StoreFailed(err)
	d.applyFailurePolicy(ctx, v, err)
	if v.isUndecided() {
		// Local counts nothing of a request that the caller decides.
		_ = d.giveBack(context.WithoutCancel(ctx), v, func(h *limiter.Hit) bool { return h.N > 0 })
		return ErrUndecided
	}
	return nil
}
