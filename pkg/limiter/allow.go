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

// ErrNeverFits is wrapped by the error of Wait and WaitN if waiting cannot help: a limit can never admit the cost.
var ErrNeverFits = errors.New("the cost never fits")

// Limiter applies one or several policies, with a counter for each key and policy. It is safe for concurrent use.
//
// The store keeps the counters. Limiters with the same store, name and policies share counters, in all processes.
type Limiter struct {
	name     string
	store    Store
	policies []*Policy
	prefixes []string // prefixes[i] is the prefix of the keys of policies[i]
	route    any
}

// New returns a Limiter that counts in store. If there are several policies, all of them must admit a request, and they
// are charged together or not at all.
//
// The name, such as "login", says what is limited. It is part of the counters' keys, and must not contain |, { or }.
// Limiters with different names never share a counter, nor do the policies of one Limiter. The error names each wrong
// parameter of the first invalid policy.
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
		// The text after the first | is the same for all policies, so that Redis Cluster keeps them in one slot.
		kind := p.Algorithm().String() + "-" + strconv.FormatInt(p.Window().Microseconds(), 36)
		prefix := kind + "|" + name + "|"
		for n := 2; slices.Contains(l.prefixes, prefix); n++ {
			prefix = kind + "-" + strconv.Itoa(n) + "|" + name + "|"
		}
		l.policies, l.prefixes = append(l.policies, p), append(l.prefixes, prefix)
	}
	return l, nil
}

// Name returns the Limiter's name.
func (l *Limiter) Name() string { return l.name }

// WithRoute returns a copy of l whose hits carry the route (see Hit.Route).
func (l *Limiter) WithRoute(route any) *Limiter {
	routed := *l
	routed.route = route
	return &routed
}

// Policies returns the Limiter's policies, in the order of New's arguments. The caller must not change the slice.
func (l *Limiter) Policies() []*Policy { return l.policies }

// Allow is AllowN for a cost of one hit.
func (l *Limiter) Allow(ctx context.Context, key string) (Decision, error) {
	return l.AllowN(ctx, key, 1)
}

// AllowN charges n hits to the key's counters if all policies admit them, and does not wait. Decision.Allowed reports
// whether the caller may go on, and RetryAfter when it may try again. If a policy delays requests (LeakyQueue, or one
// with a MaxWait), an admitted caller must first wait for Decision.Wait. WaitN includes this wait.
//
// The Decision is the tightest decision of all policies (see Tightest), with the longest Wait of all. The error wraps
// ErrUnavailable if the store could not decide, or ErrInvalid if n is not between 1 and MaxHits. After an error, the
// caller chooses whether to go on.
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (Decision, error) {
	all, err := l.AllowEach(ctx, key, n)
	if err != nil {
		return Decision{}, err
	}
	d := all[Tightest(all)]
	d.Wait = LongestWait(all)
	return d, nil
}

// AllowEach is AllowN with one decision per policy. The request is admitted if all of them are Allowed.
func (l *Limiter) AllowEach(ctx context.Context, key string, n int64) ([]Decision, error) {
	if n < 1 {
		return nil, fmt.Errorf("%w: the cost must be at least 1 hit, got %d", ErrInvalid, n)
	}
	return l.take(ctx, key, n, false, nil)
}

// Refund returns n hits to the key's counters, for example if an estimated cost was too high. It has AllowN's errors.
func (l *Limiter) Refund(ctx context.Context, key string, n int64) error {
	return l.refund(ctx, key, n, false, nil)
}

// Release ends a request in flight: it returns n hits to the counters of the Concurrency policies. Other policies stay
// charged. Call it when the request is done, with the decisions that AllowEach returned. Release then frees only the
// hits of this request, or none if the policy's Window has ended for them. Without decisions it frees the oldest hits
// of the key. Hits that are not released count until the Window ends. It has AllowN's errors.
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

// take makes one request with a hit of cost n for each policy, or only for the Concurrency policies if ends is set. For
// a refund, admitted holds the decisions that admitted its hits, if the caller knows them.
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

// Tightest returns the index of the decision that restricts the caller most: the denial with the longest RetryAfter,
// else the decision with the least Remaining. Ties go to the longest ResetAfter. all must not be empty.
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

// LongestWait returns the longest Wait of the decisions. If all of them admit a request, it may go on after that time.
func LongestWait(all []Decision) (longest time.Duration) {
	for i := range all {
		longest = max(longest, all[i].Wait)
	}
	return longest
}

// Wait is WaitN for a cost of one hit.
func (l *Limiter) Wait(ctx context.Context, key string) error { return l.WaitN(ctx, key, 1) }

// WaitN charges n hits as soon as they fit, and returns when the caller may go on. It returns an error at once if
// waiting cannot help (ErrNeverFits), if the wait would end after ctx's deadline (context.DeadlineExceeded), or if
// AllowN fails. If ctx is done during the wait, it returns ctx's error. After an error the n hits are not charged, with
// two exceptions: a delayed request (Decision.Wait) stays charged, and after ErrUnavailable the hits may be charged.
//
// Callers that wait for the same key are not served in order: each tries again after its RetryAfter. A policy whose
// ChargeDenied is not ChargeNone charges each denied attempt. For an ordered queue, use LeakyQueue.
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

// minRetry is the shortest pause between two attempts of WaitN, whatever RetryAfter the store returns.
const minRetry = time.Millisecond
