package rls

import "github.com/weir-ratelimit/weir/internal/decide"

// report encodes the response.
func (c *call) report(v *decide.Verdict) (*reply, error) {
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
	if m := c.metadata(v); m != nil {
		var err error
		if res, err = appendMetadata(res, m); err != nil {
			return nil, err
		}
	}
	c.response = res
	return newReply(res), nil
}
