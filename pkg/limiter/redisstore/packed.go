package redisstore

import (
	"hash/maphash"
	"slices"
	"sync/atomic"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// decider is what the script needs to know of a hit's limit.
type decider struct {
	policy    *limiter.Policy
	redisCell bool
}

// packedPolicy is a policy as the script reads it, which lua/call.lua describes.
type packedPolicy struct {
	by   decider
	step stepID
	text string
}

// packedPolicies keeps the policies of the latest batches packed. A policy has one slot, which it may lose to another:
// so it holds few policies, however many there are and however often rules change. It is safe for concurrent use.
type packedPolicies struct {
	slots [256]atomic.Pointer[packedPolicy]
}

var packedSeed = maphash.MakeSeed()

// of returns the hit's policy packed for a batch of now.
func (c *packedPolicies) of(by decider, h *limiter.Hit, now int64) *packedPolicy {
	edges := limit.Edges(by.policy, now)
	if len(edges) > 0 { // they change
		return packPolicy(by, h, edges)
	}
	slot := &c.slots[maphash.Comparable(packedSeed, by.policy)%uint64(len(c.slots))]
	if p := slot.Load(); p != nil && p.by == by {
		return p
	}
	p := packPolicy(by, h, nil)
	slot.Store(p)
	return p
}

func packPolicy(by decider, h *limiter.Hit, edges []int64) *packedPolicy {
	step := stepOf(h)
	numbers := slices.Concat(argsOf(h), edges,
		[]int64{int64(step), int64(by.policy.Params().ChargeDenied), by.policy.Core().Largest})
	text := make([]byte, 0, len(numbers)*double)
	for _, v := range numbers {
		text = appendDouble(text, v)
	}
	return &packedPolicy{by: by, step: step, text: string(text)}
}
