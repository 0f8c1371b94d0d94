package limiter

import (
	"errors"
	"fmt"
)

// ErrInvalid is wrapped by the error of a Store that was asked what no store can decide: it is the caller's mistake,
// and nothing was charged.
var ErrInvalid = errors.New("invalid hits")

// Check returns an error that wraps ErrInvalid, and says which hit is wrong, unless any Store can decide the hits: each
// has a policy, a known Mode and a cost that is not 0 (or only looks) and at most MaxHits, out has room for their
// answers, and hits of one key count alike. Every Store of this module calls it, or does the same, before it locks or
// sends anything.
func Check(hits []Hit, out []Decision) error {
	if err := CheckEach(hits, out); err != nil || len(hits) < 2 {
		return err
	}
	if len(hits) <= scanned {
		for i := range hits {
			if err := checkShared(hits, scan(hits, i), i); err != nil {
				return err
			}
		}
		return nil
	}
	slots := make([]Slot, len(hits))
	Link(hits, slots)
	return CheckLinked(hits, slots)
}

// CheckEach is what Check says of each hit by itself, and of the length of out.
func CheckEach(hits []Hit, out []Decision) error {
	if len(out) < len(hits) {
		return fmt.Errorf("%w: there are %d hits, and out has room for %d answers", ErrInvalid, len(hits), len(out))
	}
	for i := range hits {
		if h := &hits[i]; h.Policy == nil || h.Policy.algorithm == nil || h.N > MaxHits || h.N < -MaxHits || h.Mode > Quota ||
			h.Look != (h.N == 0) {
			return invalidHit(i, h)
		}
	}
	return nil
}

// CheckLinked is what Check says of hits that share a key, for hits that Link has put into slots.
func CheckLinked(hits []Hit, slots []Slot) error {
	for i := range hits {
		if err := checkShared(hits, slots[i].First(), i); err != nil {
			return err
		}
	}
	return nil
}

func checkShared(hits []Hit, first, i int) error {
	if hits[first].Policy == hits[i].Policy {
		return nil
	}
	a, b := &hits[first].Policy.params, &hits[i].Policy.params
	if a.Algorithm == b.Algorithm && a.Refill == b.Refill {
		return nil
	}
	return fmt.Errorf("%w: hits[%d] and hits[%d] have the same key, %.80q, and do not count alike: "+
		"the algorithm and refill of their policies must be the same", ErrInvalid, first, i, hits[i].Key)
}

func invalidHit(i int, h *Hit) error {
	switch {
	case h.Policy == nil || h.Policy.algorithm == nil:
		return fmt.Errorf("%w: hits[%d].Policy: must be set to what NewPolicy returned", ErrInvalid, i)
	case h.Mode > Quota:
		return fmt.Errorf("%w: hits[%d].Mode: must be Enforce, Shadow or Quota, got %d", ErrInvalid, i, h.Mode)
	case h.Look && h.N != 0:
		return fmt.Errorf("%w: hits[%d].Look: a hit that only looks has no cost, got N %d", ErrInvalid, i, h.N)
	case h.N == 0:
		return fmt.Errorf("%w: hits[%d].N: must not be 0; set Look if the hit is only to look", ErrInvalid, i)
	default:
		return fmt.Errorf("%w: hits[%d].N: must be between %d and %d, got %d",
			ErrInvalid, i, -int64(MaxHits), int64(MaxHits), h.N)
	}
}
