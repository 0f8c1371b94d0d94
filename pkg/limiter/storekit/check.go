package storekit

import (
	"fmt"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Check returns an error that wraps limiter.ErrInvalid and names the wrong hit, unless every Store can decide the hits.
// Each hit must have a policy, a known Mode, and a cost of at most MaxHits that is 0 only for a peek; hits with equal
// keys must have the same algorithm and refill; and out must be as long as hits. Every Store of this module calls Check
// or Link before it locks or sends anything.
func Check(hits []limiter.Hit, out []limiter.Decision) error {
	return check(hits, out, func(int, int) {})
}

// Link checks the hits as Check does, and sets the First of counters[i] to the lowest index of a hit with the key of
// hits[i]. counters must be as long as hits. Call Link once for each use of counters; its time grows with the hits.
func Link(hits []limiter.Hit, out []limiter.Decision, counters []Counter) error {
	return check(hits, out, func(i, first int) { counters[i].first = first + 1 })
}

// scanned is the maximum number of hits for which check scans the earlier hits for an equal key. Up to this number, a
// scan is cheaper than a map, and allocates nothing.
const scanned = 16

// check checks the hits, and calls each with the index of each hit and of the first hit with the same key.
func check(hits []limiter.Hit, out []limiter.Decision, each func(i, first int)) error {
	if len(out) < len(hits) {
		return fmt.Errorf("%w: there are %d hits, and out has room for %d answers",
			limiter.ErrInvalid, len(hits), len(out))
	}
	var seen map[string]int
	if len(hits) > scanned {
		seen = make(map[string]int, len(hits))
	}
	for i := range hits {
		if err := checkHit(i, &hits[i]); err != nil {
			return err
		}
		first := i
		if seen == nil {
			first = scan(hits, i)
		} else if j, ok := seen[hits[i].Key]; ok {
			first = j
		} else {
			seen[hits[i].Key] = i
		}
		if err := checkShared(hits, first, i); err != nil {
			return err
		}
		each(i, first)
	}
	return nil
}

func scan(hits []limiter.Hit, i int) int {
	for j := range i {
		if hits[j].Key == hits[i].Key {
			return j
		}
	}
	return i
}

func hasPolicy(h *limiter.Hit) bool { return h.Policy != nil && h.Policy.Core().Algorithm != nil }

// canTakeBack reports whether the hit may have a TakenAt. The policy needs no Reserve, because a rule may have been
// edited after the charge.
func canTakeBack(h *limiter.Hit) bool {
	return h.N < 0 && h.Mode != limiter.Quota && h.TakenAt > 0 && h.TakenAt <= limit.MaxTakenAt &&
		h.Policy.Core().Is(step.InFlight|step.Prepayable) && !h.Policy.Params().RefillsAtOnce
}

func checkShared(hits []limiter.Hit, first, i int) error {
	if hits[first].Policy == hits[i].Policy {
		return nil
	}
	a, b := hits[first].Policy.Params(), hits[i].Policy.Params()
	if a.Algorithm == b.Algorithm && a.RefillsAtOnce == b.RefillsAtOnce {
		return nil
	}
	return fmt.Errorf("%w: hits[%d] and hits[%d] have the same key, %.80q, and count differently: "+
		"the algorithm and refill of their policies must be the same", limiter.ErrInvalid, first, i, hits[i].Key)
}

// checkHit returns an error if the hit is invalid, whatever the other hits are.
func checkHit(i int, h *limiter.Hit) error {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("%w: hits[%d].%s", limiter.ErrInvalid, i, fmt.Sprintf(format, args...))
	}
	switch {
	case !hasPolicy(h):
		return wrong("Policy: must be set to what NewPolicy returned")
	case h.Mode > limiter.Quota:
		return wrong("Mode: must be Enforce, Shadow or Quota, got %d", h.Mode)
	case h.Peek && h.N != 0:
		return wrong("Peek: a hit with Peek must have N 0, got N %d", h.N)
	case h.N == 0 && !h.Peek:
		return wrong("N: must not be 0; set Peek for a hit that only peeks")
	case h.TakenAt != 0 && !canTakeBack(h):
		return wrong("TakenAt: must be the TakenAt of a decision, of a hit with N below 0 that is not in Mode Quota, by a "+
			"policy of Concurrency or of an algorithm that may have a Reserve; got %d", h.TakenAt)
	case h.N > limiter.MaxHits || h.N < -limiter.MaxHits:
		return wrong("N: must be between %d and %d, got %d", -int64(limiter.MaxHits), int64(limiter.MaxHits), h.N)
	}
	return nil
}
