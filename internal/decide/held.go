package decide

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/sleep"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Held records what a request holds while it runs: its count among the delayed requests, and its hits in flight (see
// limit.Owes). Whoever decides a request must call Verdict.TakeHeld and defer Release, which releases everything; after
// Keep, hits in flight stay charged until the end report. A Held is not safe for concurrent use.
type Held struct {
	wait    time.Duration
	delayed *delayed // counter that includes the request; nil: no limit may delay the request
	owed    []limiter.Hit
	store   limiter.Store // store to which owed is released
	denied  bool
}

// TakeHeld moves what the request holds to the caller. The Held stays valid after the request's Reset.
func (v *Verdict) TakeHeld() (h Held) {
	h, v.held = v.held, Held{}
	return h
}

// For returns how long the request is delayed.
func (h *Held) For() time.Duration { return h.wait }

// Wait returns nil after the delay, or the error of ctx as soon as ctx is done. An interrupted wait refunds no charge
// of the limit that delays, because later requests were already scheduled behind this one.
func (h *Held) Wait(ctx context.Context) error {
	if h.wait > 0 {
		return sleep.For(ctx, h.wait)
	}
	if h.Owes() {
		return ctx.Err()
	}
	return nil
}

// Keep must be called when the response is sent. An admitted request is then in flight until its end is reported.
func (h *Held) Keep() {
	if !h.denied {
		h.owed = nil
	}
}

// Owes reports whether Release calls the store.
func (h *Held) Owes() bool { return len(h.owed) > 0 }

// Release releases all that is held, and may be called again. After an error, requests in flight end with their lease.
func (h *Held) Release(ctx context.Context) {
	delayed, owed, store := h.delayed, h.owed, h.store
	*h = Held{}
	if delayed != nil {
		delayed.now.Add(-1)
	}
	if len(owed) > 0 {
		_ = store.Take(context.WithoutCancel(ctx), owed, make([]limiter.Decision, len(owed)))
	}
}

// hold records what the request holds after store has decided these hits.
func (v *Verdict) hold(store limiter.Store, hits []limiter.Hit, out []limiter.Decision) {
	v.held.owed, v.held.store = limit.Owes(v.held.owed, hits, out, true), store
}

// delayed counts the requests that are or may be delayed, and bounds their number.
type delayed struct {
	most    int64
	now     atomic.Int64
	refused atomic.Uint64
}

// add counts a request that may be delayed. It returns false if the maximum is reached.
func (d *delayed) add() bool {
	if d.now.Add(1) <= d.most {
		return true
	}
	d.now.Add(-1)
	d.refused.Add(1)
	return false
}

// DelayedStats counts delayed requests.
type DelayedStats struct {
	// Now is the number of delayed requests, including undecided requests that may be delayed.
	Now int64
	// Refused is the number of requests that were denied because Options.MaxDelayed requests were delayed already.
	Refused uint64
}

// Delayed returns the numbers of requests that leaky_queue and max_wait delay.
func (d *Decider) Delayed() DelayedStats {
	return DelayedStats{Now: d.delayed.now.Load(), Refused: d.delayed.refused.Load()}
}

// canWait reports whether the hit can delay its request. Refunds and peeks cannot.
func canWait(h *limiter.Hit) bool {
	return h.N > 0 && h.Mode != limiter.Shadow && h.Policy.MaxWait() > 0
}

// longestWait returns the delay of the request if it is admitted.
func (v *Verdict) longestWait() (longest time.Duration) {
	for i := range v.Decisions {
		if v.Hits[i].Mode != limiter.Shadow {
			longest = max(longest, v.Decisions[i].Wait)
		}
	}
	return longest
}
