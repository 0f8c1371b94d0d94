package decide

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// delaySlots bounds the requests that are delayed at once.
type delaySlots struct {
	most    int64
	taken   atomic.Int64
	refused atomic.Uint64
}

// acquire takes a place for a request that may have to wait, and reports whether one was free.
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
	// Now is how many requests have a place to wait in: their limits may delay them.
	Now int64
	// Refused is how many requests were denied because all places were taken.
	Refused uint64
}

// Delayed counts the requests that leaky_queue and max_wait delay.
func (d *Decider) Delayed() DelayedStats {
	return DelayedStats{Now: d.slots.taken.Load(), Refused: d.slots.refused.Load()}
}

// Delay is the time that an admitted request waits before it is answered, and its slot among those that do. End is
// called once, whatever becomes of the request.
type Delay struct {
	For  time.Duration
	slot *delaySlots
}

// Delay is the verdict's. Unlike the verdict it is valid after the request's Reset.
func (v *Verdict) Delay() Delay { return Delay{For: v.Wait, slot: v.slot} }

// Wait returns after the delay, or with ctx's error when ctx is done. What the limits counted is not given back then:
// the requests behind this one have their time already.
func (d Delay) Wait(ctx context.Context) error {
	if d.slot == nil {
		return nil
	}
	return limiter.Sleep(ctx, d.For)
}

// End frees the request's slot.
func (d Delay) End() {
	if d.slot != nil {
		d.slot.taken.Add(-1)
	}
}

// canWait reports whether the hit can delay its request. What gives back or looks cannot, and so needs no place.
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

// slotAgain is the wait that a request without a slot announces: slots become free all the time, and its limits have not
// been asked.
const slotAgain = time.Second

// refuse denies a request that might have to wait, because no slot is free. Only what the request gives back is taken
// to the store: that has ended, whatever becomes of the rest. The other hits are charged nothing, also those that are
// charged by themselves.
func (d *Decider) refuse(ctx context.Context, v *Verdict) error {
	v.refused = true
	var gives []limiter.Hit
	for i := range v.Hits {
		h := &v.Hits[i]
		v.Decisions[i] = limiter.Decision{Allowed: true, Remaining: h.Policy.Capacity()}
		switch {
		case h.N < 0:
			gives = append(gives, *h)
		case canWait(h):
			v.Decisions[i] = limiter.Decision{RetryAfter: slotAgain}
		}
	}
	if len(gives) == 0 {
		return nil
	}
	out := make([]limiter.Decision, len(gives))
	if err := d.o.Store.Take(ctx, gives, out); err != nil {
		if gone := ctx.Err(); gone != nil {
			return gone
		}
		d.o.Observer.StoreFailed(err)
		return nil
	}
	for i, j := 0, 0; j < len(gives); i++ {
		if v.Hits[i].N < 0 {
			v.Decisions[i] = out[j]
			j++
		}
	}
	return nil
}
