package limiter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/sleep"
)

// ErrNeverFits is wrapped by the error of Wait and WaitN when no wait helps: the cost is larger than a limit can
// ever admit at once, or the limit is zero.
var ErrNeverFits = errors.New("the cost never fits")

// Limiter limits one thing by one or several policies, with a counter for each key. It is safe for concurrent use.
//
// The counters are the store's: every process that asks the same store shares them, if its Limiter has the same name.
type Limiter struct {
	name     string
	store    Store
	policies []*Policy
	prefixes []string // prefixes[i] begins the keys of policies[i]
	route    any
}

// New returns a Limiter that counts in store. Of several policies all must admit a request, and they are charged
// together or not at all.
//
// The name says what is limited, such as "login". It is part of the counters' keys, with each policy's algorithm and
// window: Limiters of different names, and the policies of one Limiter, never share a counter. A name has no |, { or }.
// An error names each parameter that is wrong.
func New(store Store, name string, policy Params, more ...Params) (*Limiter, error) {
	if name == "" || strings.ContainsAny(name, "|{}") {
		return nil, fmt.Errorf("limiter: the name must be a text without |, { and }, such as login; got %q", name)
	}
	l := &Limiter{name: name, store: store}
	for i, params := range append([]Params{policy}, more...) {
		p, err := NewPolicy(params)
		if err != nil {
			return nil, fmt.Errorf("limiter %s, policy %d: %w", name, i+1, err)
		}
		// What follows the first | is alike for all policies, so that a Redis Cluster has them in one slot.
		kind := p.Algorithm().String() + "-" + strconv.FormatInt(p.Window().Microseconds(), 36)
		prefix := kind + "|" + name + "|"
		for n := 2; slices.Contains(l.prefixes, prefix); n++ {
			prefix = kind + "-" + strconv.Itoa(n) + "|" + name + "|"
		}
		l.policies, l.prefixes = append(l.policies, p), append(l.prefixes, prefix)
	}
	return l, nil
}

// Name returns the name that New got.
func (l *Limiter) Name() string { return l.name }

// WithRoute returns a Limiter like l whose hits have the route (Hit.Route).
func (l *Limiter) WithRoute(route any) *Limiter {
	routed := *l
	routed.route = route
	return &routed
}

// Policies returns what the Limiter counts by, in the order in which New got them.
func (l *Limiter) Policies() []*Policy { return l.policies }

// Allow is AllowN for a cost of one hit.
func (l *Limiter) Allow(ctx context.Context, key string) (Decision, error) {
	return l.AllowN(ctx, key, 1)
}

// AllowN charges n hits to the key's counters if all of them fit, and returns at once. Decision.Allowed says
// whether the caller may go on, RetryAfter when it may try again. A policy that delays requests (LeakyQueue, or one
// with a MaxWait) allows a caller that then waits for Decision.Wait; WaitN does that by itself.
//
// Of several policies the Decision is the tightest one's, as Tightest has it. An error wraps ErrUnavailable if the
// store could not decide, or ErrInvalid if n is not between 1 and MaxHits. Whether the caller goes on without a
// decision is its own choice.
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (Decision, error) {
	all, err := l.AllowEach(ctx, key, n)
	if err != nil {
		return Decision{}, err
	}
	d := all[Tightest(all)]
	d.Wait = LongestWait(all)
	return d, nil
}

// AllowEach is AllowN that returns the decision of each policy. The request is admitted if all of them are Allowed.
func (l *Limiter) AllowEach(ctx context.Context, key string, n int64) ([]Decision, error) {
	if n < 1 {
		return nil, fmt.Errorf("%w: the cost must be at least 1 hit, got %d", ErrInvalid, n)
	}
	return l.take(ctx, key, n, false, nil)
}

// Refund gives n hits back to the key's counters, for example what an estimated cost was too high.
func (l *Limiter) Refund(ctx context.Context, key string, n int64) error {
	return l.refund(ctx, key, n, false, nil)
}

// Release gives n hits back to the counters of requests in flight: the policies of Concurrency. Who was admitted
// calls it when done, with the decisions that AllowEach returned: then a request that was in flight for longer than the
// policy's Window, so that it counts no more, frees nothing. Without them the oldest hits are released, whoever holds
// them. Hits that are not released count until the policy's Window ends. Other policies stay charged.
func (l *Limiter) Release(ctx context.Context, key string, n int64, admitted ...Decision) error {
	return l.refund(ctx, key, n, true, admitted)
}

func (l *Limiter) refund(ctx context.Context, key string, n int64, ends bool, admitted []Decision) error {
	if n < 1 {
		return fmt.Errorf("%w: at least 1 hit can be refunded, got %d", ErrInvalid, n)
	}
	_, err := l.take(ctx, key, -n, ends, admitted)
	return err
}

// take makes one request of a hit of cost n for each of the policies, at its end for those of Concurrency. What gives
// back has the decisions that admitted it, if they are known.
func (l *Limiter) take(ctx context.Context, key string, n int64, ends bool, admitted []Decision) ([]Decision, error) {
	hits := make([]Hit, 0, len(l.policies))
	for i, p := range l.policies {
		if ends && !p.Algorithm().CountsInFlight() {
			continue
		}
		h := Hit{Key: l.prefixes[i] + key, Policy: p, N: n, Route: l.route}
		if i < len(admitted) {
			h.TakenAt = admitted[i].TakenAt
		}
		hits = append(hits, h)
	}
	if len(hits) == 0 {
		return nil, nil
	}
	out := make([]Decision, len(hits))
	if err := l.store.Take(ctx, hits, out); err != nil {
		return nil, err
	}
	return out, nil
}

// Tightest returns the index of the decision that matters most to a caller: the denied one with the longest
// RetryAfter, else the one with the least Remaining, and of several such the one with the longest ResetAfter. all must
// not be empty.
func Tightest(all []Decision) int {
	tightest := 0
	for i := range all {
		if all[i].tighter(&all[tightest]) {
			tightest = i
		}
	}
	return tightest
}

func (d *Decision) tighter(o *Decision) bool {
	switch {
	case d.Allowed != o.Allowed:
		return !d.Allowed
	case !d.Allowed && d.RetryAfter != o.RetryAfter:
		return d.RetryAfter > o.RetryAfter
	case d.Remaining != o.Remaining:
		return d.Remaining < o.Remaining
	default:
		return d.ResetAfter > o.ResetAfter
	}
}

// LongestWait returns how long a caller waits that all decisions admit: the slowest limit says when it goes on.
func LongestWait(all []Decision) (longest time.Duration) {
	for i := range all {
		longest = max(longest, all[i].Wait)
	}
	return longest
}

// Wait is WaitN for a cost of one hit.
func (l *Limiter) Wait(ctx context.Context, key string) error { return l.WaitN(ctx, key, 1) }

// WaitN charges n hits as soon as they fit, and returns when the caller may go on. It returns an error at once if no
// wait helps (ErrNeverFits), or if the wait would end after ctx's deadline (context.DeadlineExceeded); when ctx is done
// it returns ctx's error. An error means that nothing is charged, but for a delayed request (Decision.Wait), which
// stays charged.
//
// Callers that wait for one key are not served in order: each asks again when its RetryAfter is over. A policy
// whose ChargeDenied is not ChargeNone charges them each time. For a queue in order, use LeakyQueue.
func (l *Limiter) WaitN(ctx context.Context, key string, n int64) error {
	for {
		d, err := l.AllowN(ctx, key, n)
		if err != nil {
			return err
		}
		wait := d.Wait
		if !d.Allowed {
			if d.RetryAfter == Never {
				return fmt.Errorf("%w: %d hits", ErrNeverFits, n)
			}
			wait = max(d.RetryAfter, minRetry)
		}
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < wait {
			return fmt.Errorf("the limit needs a wait of %s, and the deadline is earlier: %w", wait, context.DeadlineExceeded)
		}
		if err := sleep.For(ctx, wait); err != nil || d.Allowed {
			return err
		}
	}
}

// minRetry is the least time between two questions of WaitN, whatever the store answers.
const minRetry = time.Millisecond
