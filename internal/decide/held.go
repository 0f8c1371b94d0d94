package decide

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/sleep"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Held is what a request holds: its count among the delayed requests, and what limit.Owes says. Whoever has a request
// decided takes it by Verdict.TakeHeld, and has a deferred Release: whatever becomes of the request, nothing is held
// after that but what Keep has left to the request itself. A Held is not safe for concurrent use.
type Held struct {
	wait    time.Duration
	delayed *delayed // counts the request; nil: it is not delayed
	owed    []limiter.Hit
	store   limiter.Store // that gets it back
	denied  bool
}

// TakeHeld moves what the request holds to the caller. It is valid after the request's Reset.
func (v *Verdict) TakeHeld() (h Held) {
	h, v.held = v.held, Held{}
	return h
}

// For is how long the request is delayed.
func (h *Held) For() time.Duration { return h.wait }

// Wait returns when the request's turn has come, or with ctx's error when ctx is done. What the limits counted is not
// refunded then: the requests behind this one have their time already.
func (h *Held) Wait(ctx context.Context) error {
	if h.wait > 0 {
		return sleep.For(ctx, h.wait)
	}
	if h.Owes() {
		return ctx.Err()
	}
	return nil
}

// Keep is called when the answer is on its way: an admitted request holds what it took until its end is reported.
func (h *Held) Keep() {
	if !h.denied {
		h.owed = nil
	}
}

// Owes reports whether Release asks the store.
func (h *Held) Owes() bool { return len(h.owed) > 0 }

// Release ends all that is held. It may be called again. Without an answer of the store, what counts as in flight
// does so until the end of its lease.
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

// hold notes what the request holds once a store has answered these hits.
func (v *Verdict) hold(store limiter.Store, hits []limiter.Hit, out []limiter.Decision) {
	v.held.owed, v.held.store = limit.Owes(v.held.owed, hits, out), store
}

// delayed counts the requests that are, or may be, delayed, and bounds their number.
type delayed struct {
	most    int64
	now     atomic.Int64
	refused atomic.Uint64
}

// add counts a request that may be delayed, and reports whether the bound admits it.
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
	// Now is the number of requests that are delayed, or may be: their limits are being asked.
	Now int64
	// Refused is the number of requests that were denied because Options.MaxDelayed were delayed already.
	Refused uint64
}

// Delayed counts the requests that leaky_queue and max_wait delay.
func (d *Decider) Delayed() DelayedStats {
	return DelayedStats{Now: d.delayed.now.Load(), Refused: d.delayed.refused.Load()}
}

// canWait reports whether the hit can delay its request. What refunds or looks cannot.
func canWait(h *limiter.Hit) bool {
	return h.N > 0 && h.Mode != limiter.Shadow && h.Policy.MaxWait() > 0
}

// longestWait is how long the request waits if it is admitted.
func (v *Verdict) longestWait() (longest time.Duration) {
	for i := range v.Decisions {
		if v.Hits[i].Mode != limiter.Shadow {
			longest = max(longest, v.Decisions[i].Wait)
		}
	}
	return longest
}
