package rls

import (
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/decide/metadata"
)

func (c *call) report(v *decide.Verdict) *reply {
	res := appendNumber(c.response[:0], 1, code(v.Denied))
	for i := range v.Statuses {
		res = appendStatus(res, &v.Statuses[i])
	}
	v.Headers(func(h decide.Header) bool {
		res = appendHeader(res, h)
		return true
	})
	if v.Denied {
		if response := v.Response(); response != nil {
			res = appendText(res, 5, response.Body)
		}
	}
	before := len(res)
	res, start := begin(res, 6)
	if res = end(metadata.Append(res, v, c), start); len(res) == start {
		res = res[:before]
	}
	c.response = res
	return newReply(res)
}

// HitsAddend implements metadata.Costs.
func (c *call) HitsAddend() uint32 { return c.addend }

// OwnHitsAddend implements metadata.Costs.
func (c *call) OwnHitsAddend(i int) (hits uint64, ok bool) {
	addend := &c.wire[i].addend
	return addend.value, addend.present
}
