package rls

import "github.com/weir-ratelimit/weir/internal/decide"

// call is one call of ShouldRateLimit: the request as it was decoded, and memory for its response. It is kept from call
// to call.
type call struct {
	*decide.Request

	o        *Options
	wire     []wireDescriptor // one for each of the request's Descriptors
	addend   uint32           // the request's hits_addend
	response []byte
}

// wireDescriptor is what a descriptor has on the wire only: translate makes a decide.Descriptor of it.
type wireDescriptor struct {
	addend     wrapped[uint64] // hits_addend
	isNegative bool            // is_negative_hits
	limit      override
}

// get returns an empty call: one that release has kept, or a new one.
func (s *Service) get() *call {
	if c, ok := s.calls.Get().(*call); ok {
		return c
	}
	return &call{Request: s.o.Decider.NewRequest(), o: &s.o}
}

// release empties the call for another one. It keeps nothing of this one alive.
func (s *Service) release(c *call) {
	c.reset()
	s.calls.Put(c)
}

func (c *call) reset() {
	c.Reset()
	c.wire, c.addend, c.response = c.wire[:0], 0, c.response[:0]
}
