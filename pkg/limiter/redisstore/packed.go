package redisstore

import (
	"slices"

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

// packed returns the hit's policy packed for a batch of now. The policy keeps it, unless it has windows, which change.
func packed(by decider, h *limiter.Hit, now int64) *packedPolicy {
	edges := limit.Edges(by.policy, now)
	if len(edges) > 0 {
		return packPolicy(by, h, edges)
	}
	kept := &by.policy.Core().Packed
	if p, ok := kept.Load().(*packedPolicy); ok && p.by == by {
		return p
	}
	p := packPolicy(by, h, nil)
	kept.Store(p)
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
