// Package limiter decides rate limits: may this request pass now, and if not, when?
//
// [Params] are a limit, a [Store] keeps its counters, and a [Limiter] asks one by the other:
//
//	store, err := memstore.New(memstore.Options{})
//	...
//	perClient, err := limiter.New(store, "client", limiter.NewTokenBucket(100, time.Minute, 20))
//	...
//
//	d, err := perClient.Allow(ctx, "ann")
//	switch {
//	case err != nil: // the store could not decide: pass or deny, as you like
//	case d.Allowed:  // serve the request
//	default:         // refuse it; it would pass after d.RetryAfter
//	}
//
// [Limiter.Wait] returns when the request may pass. [Limiter.AllowN] and [Limiter.WaitN] take a cost in hits, and
// [Limiter.Refund] refunds what an estimated cost was too high. For net/http and gRPC servers, package middleware
// does all of this.
//
// # Algorithms
//
// A function for each algorithm makes its Params. If you do not know which to take, take [NewTokenBucket].
//
//   - [NewFixedWindow] counts per window, also by the calendar ([AlignCalendar]). Twice the limit can pass around the
//     end of a window.
//   - [NewSlidingWindow] counts in segments of a window that moves, [NewSlidingLog] remembers each hit and is exact.
//   - [NewFunnel] (a leaky bucket; GCRA) and [NewTokenBucket] allow a burst, and then a steady rate.
//   - [NewLeakyQueue] delays requests so that they pass evenly spaced. [NewSmoothBursty] and [NewSmoothWarmingUp] are
//     those of Guava's RateLimiter.
//   - [NewConcurrency] bounds requests in flight; [Limiter.Release] ends one.
//
// # Stores
//
// Package memstore keeps counters in this process, and package redisstore in a Redis that processes share. Both
// decide exactly alike. Limiters of one name over one store share the counter of a key.
//
// # Below the Limiter
//
// A [Hit] is one limit that a request asks: a counter's key, a [Policy], which is checked Params, and a cost. A
// [Decision] answers it. [Store.Take] decides all hits of a request as a whole: all are charged, or none. Use it where
// the limits of a request are not known before it comes, as a service that reads rules does.
//
// This package knows no clock, no wire format, no rule file and no database.
//
// # Writing a Store
//
// Package storekit decides requests, and leaves to the store where states are kept. Package limitertest has the
// contract as a test.
package limiter

import (
	"context"
	"errors"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
)

// Never is the RetryAfter of a hit that no wait lets pass: its cost is larger than the limit's capacity, or
// the limit is zero.
const Never = step.Never

// MaxHits is the largest cost of one Hit, in hits: 2.8e14, which is 256 TiB for a limit that counts bytes. Sums of a
// cost and of what a counter holds stay below 2^53, so that Redis, whose Lua counts in doubles, decides exactly as Go
// does.
const MaxHits = step.MaxLimit

// ErrUnavailable is wrapped by every error of a Store but those of ErrInvalid: it could not say whether the request may
// pass. A denial is a value (Decision.Allowed), never an error.
var ErrUnavailable = errors.New("limit store unavailable")

// Errors of a Store that has not failed. They are wrapped beside ErrUnavailable.
var (
	// ErrLate says that this process was too late for the store's answer: it has too little CPU, or more requests than
	// the store can take. Count such a request by other means, such as a memstore of this process.
	ErrLate = errors.New("this process was too late to get the store's answer")
	// ErrShed says that too many requests wait for the store. Answer it by an error.
	ErrShed = errors.New("too many requests wait for the store")
)

// Mode says how a hit that does not fit counts in the decision of the request as a whole.
type Mode uint8

// The modes of a hit.
const (
	// Enforce denies the request when the hit does not fit.
	Enforce Mode = iota
	// Shadow never denies: the hit is decided and charged by itself, whatever becomes of the request.
	Shadow
	// Quota denies the request only if every group of Quota hits (see Hit.Group) has one that does not fit.
	Quota
)

// String returns the mode's name: "enforce", "shadow" or "quota".
func (m Mode) String() string { return nameOf(modeNames, m) }

// Hit is one limit that a request asks: a counter, the policy that rules it, and a cost.
type Hit struct {
	// Key names the counter. Equal keys share state, in every process that uses the same store.
	Key string
	// Policy is the limit. Hits with equal keys in one request carry policies of the same algorithm.
	Policy *Policy
	// N is the cost in hits: above 0 charges, below 0 refunds. -MaxHits <= N <= MaxHits, and not 0, so that a hit
	// whose cost was forgotten is refused and not free.
	N int64
	// Look only looks, with N 0: the hit writes nothing, unless it finds a state to cut (the rule was edited, or the
	// clock was set back), and fits if at least one more hit would.
	Look bool
	// ByItself charges each hit of the request by itself, also when another one denies the request. One hit that has it
	// is enough.
	ByItself bool
	// Mode says what the hit's not fitting means for the request.
	Mode Mode
	// Group is equal for the hits of one descriptor. It matters for those of Mode Quota: a descriptor with several limits
	// is over its quota when it is over one of them, wherever its hits stand. A group below 0 is never over: its hits are
	// decided and charged, and deny nothing.
	Group int
	// TakenAt is of a hit that refunds what another one took of a limit on requests in flight: the Decision.TakenAt of
	// that one. The hit frees this alone, or nothing if it counts no more. With 0 it frees what was taken first, whoever
	// holds it. It must be 0 unless N is below 0, the Policy is of Concurrency, and the Mode is not Quota.
	TakenAt int64
	// OrOldest has a hit with a TakenAt free what was taken first if nothing of that time is left although its lease, the
	// Policy's Window, has not ended: a hit without a TakenAt may have freed that in place of its own.
	OrOldest bool
	// Route is for the store alone: it says which one has the counter, or who decides. A store reads it by interfaces of
	// its own, and ignores what it does not know; nil is its default. Hits with equal keys have the same.
	Route any
}

// Decision answers one Hit. With C=15 and a funnel that leaks one hit in two seconds, the first of 15 hits at
// once has Remaining 14 and ResetAfter 2s; the 16th has Allowed false, Remaining 0 and RetryAfter 2s.
type Decision struct {
	// Allowed says whether the hit fits. Whether the request passes is Admitted's answer.
	Allowed bool
	// Cached says that no store was asked: an earlier denial still holds.
	Cached bool
	// Remaining is how many hits of cost 1 would pass right now, after this one.
	Remaining int64
	// RetryAfter is the shortest wait after which the same cost fits if nothing else arrives: 0 when it
	// fits now, Never when no wait helps.
	RetryAfter time.Duration
	// ResetAfter is the time until the limit is fully available again: 0 if it is so now. Of FixedWindow it is always the
	// time until the window ends.
	ResetAfter time.Duration
	// Wait is for how long an admitted request is delayed, by LeakyQueue, SmoothBursty and SmoothWarmingUp; else 0.
	Wait time.Duration
	// TakenAt is when an admitted hit of Concurrency was taken, by the store's clock, in microseconds since the Unix
	// epoch; 0 of other hits. The hit that gives it back has it as Hit.TakenAt.
	TakenAt int64
}

// Store keeps the counters' state and decides requests over it.
type Store interface {
	// Take decides one request: out[i] answers hits[i], and len(out) must be at least len(hits). The hits
	// are checked in order, a later hit of a key sees the earlier one, and they are charged together
	// or not at all, as Decide has it. An error wraps ErrUnavailable and says that the answer is not known, or
	// ErrInvalid where the hits are not what Check accepts; out is then meaningless. Take is safe for concurrent
	// use, returns within 20 ms after ctx is done, and keeps neither hits nor out.
	Take(ctx context.Context, hits []Hit, out []Decision) error
}
