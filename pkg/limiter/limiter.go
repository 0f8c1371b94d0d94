// Package limiter decides rate limits: may this request pass now, and if not, when?
//
// [Params] describe a limit, a [Store] keeps its counters, and a [Limiter] applies the limit to requests:
//
//	store, err := memstore.New(memstore.Options{})
//	...
//	perClient, err := limiter.New(store, "client", limiter.NewTokenBucket(100, time.Minute, 20))
//	...
//
//	d, err := perClient.Allow(ctx, "ann")
//	switch {
//	case err != nil: // the store could not decide: you choose whether the request passes
//	case d.Allowed:  // serve the request
//	default:         // deny the request; it would pass after d.RetryAfter
//	}
//
// [Limiter.Wait] waits until the request may pass. [Limiter.AllowN] and [Limiter.WaitN] take a cost in hits, and
// [Limiter.Refund] returns hits if an estimated cost was too high. Package middleware limits net/http and gRPC servers.
//
// # Algorithms
//
// Each algorithm has a function that returns its Params. If you do not know which one to use, use [NewTokenBucket].
//
//   - [NewFixedWindow] counts per window, which can follow the calendar ([AlignCalendar]). Up to twice the limit can
//     pass around the end of a window.
//   - [NewSlidingWindow] counts in segments of a moving window. [NewSlidingLog] remembers each hit and is exact.
//   - [NewFunnel] (a leaky bucket; GCRA) and [NewTokenBucket] allow a burst, and then a steady rate.
//   - [NewLeakyQueue] delays requests so that they pass evenly spaced. [NewSmoothBursty] and [NewSmoothWarmingUp] are
//     the algorithms of Guava's RateLimiter.
//   - [NewConcurrency] limits the number of requests in flight; [Limiter.Release] ends a request.
//
// # Stores
//
// Package memstore keeps counters in this process, and package redisstore in a Redis that several processes share. Both
// make the same decisions. Limiters with the same name over one store share the counter of a key.
//
// # Below the Limiter
//
// A [Hit] is one limit of a request: a counter's key, a cost, and a [Policy], which holds checked Params. A [Decision]
// is the result for one hit. [Store.Take] decides all hits of a request together: all are charged, or none. Use it if
// the limits are known only when the request arrives, as in a service that reads rules.
//
// # Writing a Store
//
// Package storekit decides requests, so that a Store only has to load and save states. Package limitertest tests a
// Store.
package limiter

import (
	"context"
	"errors"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
)

// Never is the RetryAfter of a hit that can never fit: its cost is above the limit's capacity, or the limit is zero.
const Never = step.Never

// MaxHits is the largest cost of one Hit: 2^48 = 2.8e14 hits, or 256 TiB for a limit that counts bytes. The sum of such
// a cost and a counter stays below 2^53, so Redis, whose Lua counts in doubles, decides exactly as Go does.
const MaxHits = step.MaxLimit

// ErrUnavailable is wrapped by every error of a Store that does not wrap ErrInvalid. It means that the Store could not
// decide whether the request may pass. A denial is not an error but a Decision that is not Allowed.
var ErrUnavailable = errors.New("limit store unavailable")

// Errors of a Store that works but did not decide in time. An error that wraps one of them also wraps ErrUnavailable.
var (
	// ErrLate reports that this process read the store's reply too late, because it has too little CPU or makes more
	// requests than the store can serve. Count such a request by other means, such as a memstore of this process.
	ErrLate = errors.New("this process was too late to read the store's response")
	// ErrShed reports that too many requests already wait for the store. Respond to the request with an error.
	ErrShed = errors.New("too many requests wait for the store")
)

// Mode sets how a hit that does not fit affects the decision of its request.
type Mode uint8

// The modes of a hit.
const (
	// Enforce denies the request when the hit does not fit.
	Enforce Mode = iota
	// Shadow never denies the request: the hit is decided and charged independently of the other hits.
	Shadow
	// Quota denies the request only if every group of Quota hits (see Hit.Group) has a hit that does not fit.
	Quota
)

// String returns the mode's name: "enforce", "shadow" or "quota".
func (m Mode) String() string { return nameOf(modeNames, m) }

// Hit is one limit of a request: a counter, the policy of the counter, and a cost.
type Hit struct {
	// Key names the counter. Equal keys share state, in every process that uses the same store.
	Key string
	// Policy is the limit. Hits with equal keys in one request must have policies of the same Algorithm and RefillsAtOnce.
	Policy *Policy
	// N is the cost in hits, from -MaxHits to MaxHits. A positive cost is charged, a negative cost is refunded. 0 is an
	// error unless Peek is set, so that a forgotten cost does not make a request free.
	N int64
	// Peek makes the hit a peek, whose N must be 0. A peek fits if at least one more hit would fit. It writes only if the
	// state is further ahead than the policy allows, because the rule was edited or the clock was set back.
	Peek bool
	// ByItself, if set in any hit of the request, charges each hit independently, even if another hit is denied.
	ByItself bool
	// Mode sets how the hit affects the request if the hit does not fit.
	Mode Mode
	// Group is equal for all hits of one descriptor. It matters in Mode Quota: a descriptor with several limits is over
	// its quota if it exceeds one of these limits. A group below 0 is never over: its hits are charged, but deny nothing.
	Group int
	// TakenAt makes a refund free only the hits whose Decision has this TakenAt, or nothing if these hits no longer count.
	// With 0, the refund frees hits of any request: the oldest for Concurrency, else the newest. TakenAt must be 0 unless
	// N is below 0, the Mode is not Quota, and the Policy is of Concurrency or could have a Reserve.
	TakenAt int64
	// OrOldest makes a refund with a TakenAt free the oldest hits if no hit with that TakenAt is left, although its lease
	// (the Policy's Window) has not ended: a refund without a TakenAt may have freed that hit in place of its own.
	OrOldest bool
	// Route is data for the Store only, such as which of several Redis keeps the counter. A Store reads the Route through
	// its own interfaces, and ignores unknown values; nil is the default. Hits with equal keys must have equal Routes.
	Route any
}

// Decision is the result of one Hit. For example, of 16 hits at once on a funnel with Burst 15 that leaks one hit in
// two seconds, the first has Remaining 14 and ResetAfter 2s; the last is denied, with Remaining 0 and RetryAfter 2s.
type Decision struct {
	// Allowed reports whether the hit fits. Admitted reports whether the request passes.
	Allowed bool
	// Cached reports that the store was not called, because an earlier denial still holds.
	Cached bool
	// Remaining is the number of hits of cost 1 that would be admitted now, after this hit.
	Remaining int64
	// RetryAfter is the shortest wait after which the same cost fits if no other hit arrives: 0 if it fits now, or Never.
	RetryAfter time.Duration
	// ResetAfter is the time until the limit is fully available again, or 0 if it is available now. For FixedWindow it is
	// always the time until the window ends.
	ResetAfter time.Duration
	// Wait is how long an admitted request must be delayed (LeakyQueue, SmoothBursty and SmoothWarmingUp), else 0.
	Wait time.Duration
	// TakenAt is the time when a Concurrency limit admitted the hit, by the store's clock, in microseconds since the Unix
	// epoch. For a hit that was charged to a limit with a Reserve, it is the time at which that charge no longer counts.
	// It is 0 for other hits. A refund of the hit carries it as Hit.TakenAt.
	TakenAt int64
}

// Store keeps the state of counters and decides requests.
type Store interface {
	// Take decides one request: out[i] is the decision of hits[i], and len(out) must be at least len(hits). Hits are
	// decided in order, and a later hit of a key sees the charges of earlier hits. All hits are charged together or not at
	// all, by the rules of storekit.Decide. The error wraps ErrInvalid if storekit.Check rejects the hits, else
	// ErrUnavailable, which means that the decision is unknown; out is then meaningless. Take must be safe for concurrent
	// use, keep neither hits nor out, and return within 20 ms after ctx is done.
	Take(ctx context.Context, hits []Hit, out []Decision) error
}
