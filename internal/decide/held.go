package decide

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Held is what a request holds: a slot among those that are delayed, and what limiter.Owes says. Whoever has a request
// decided takes it by Verdict.TakeHeld, and has a deferred Release: whatever becomes of the request, nothing is held
// after that but what Keep has left to the request itself. A Held is not safe for concurrent use.
type Held struct {
	wait   time.Duration
	slot   *delaySlots
	owed   []limiter.Hit
	store  limiter.Store // that gets it back
	denied bool
}

// TakeHeld moves what the request holds to the caller. It is valid after the request's Reset.
func (v *Verdict) TakeHeld() (h Held) {
	h, v.held = v.held, Held{}
	return h
}

// For is how long the request is delayed.
func (h *Held) For() time.Duration { return h.wait }

// Wait returns when the request's turn has come, or with ctx's error when ctx is done. What the limits counted is not
// given back then: the requests behind this one have their time already.
func (h *Held) Wait(ctx context.Context) error {
	if h.wait > 0 {
		return limiter.Sleep(ctx, h.wait)
	}
	if h.owed != nil {
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

// Release ends all that is held. It may be called again. Without an answer of the store, places are free at the end of
// their lease.
func (h *Held) Release(ctx context.Context) {
	slot, owed, store := h.slot, h.owed, h.store
	*h = Held{}
	if slot != nil {
		slot.taken.Add(-1)
	}
	if len(owed) > 0 {
		_ = store.Take(context.WithoutCancel(ctx), owed, make([]limiter.Decision, len(owed)))
	}
}

// hold notes what the request holds once a store has answered these hits.
func (v *Verdict) hold(store limiter.Store, hits []limiter.Hit, out []limiter.Decision) {
	v.held.owed, v.held.store = limiter.Owes(v.held.owed, hits, out), store
}

// delaySlots bounds the requests that are delayed at once.
type delaySlots struct {
	most    int64
	taken   atomic.Int64
	refused atomic.Uint64
}

// acquire takes a slot for a request that may have to wait, and reports whether one was free.
func (s *delaySlots) acquire() bool {
	if s.taken.Add(1) <= s.most {
		return true
	}
	s.taken.Add(-1)
	s.refused.Add(1)
	return false
}

// DelayedStats counts delayed requests.
type DelayedStats struct {
	// Now is how many requests have a slot to wait in: their limits may delay them.
	Now int64
	// Refused is how many requests were denied because all slots were taken.
	Refused uint64
}

// Delayed counts the requests that leaky_queue and max_wait delay.
func (d *Decider) Delayed() DelayedStats {
	return DelayedStats{Now: d.slots.taken.Load(), Refused: d.slots.refused.Load()}
}

// canWait reports whether the hit can delay its request. What gives back or looks cannot, and so needs no slot.
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
