package rls

import (
	"context"
	"sync"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/internal/decide"
)

// Codec returns gRPC's protobuf codec, except that the service itself decodes the requests and encodes the responses of
// ShouldRateLimit. The service creates no object per nested message, because that would take longer than the decision.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2(proto.Name)} }

type codec struct{ encoding.CodecV2 }

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	to, ok := v.(*call)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	data.Ref() // decode frees it
	to.message = data
	return nil
}

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	r, ok := v.(*reply)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	return r.buffers[:], nil
}

// reply is an encoded response with the slices that gRPC needs, in one allocation. It is never reused, so that no
// request can read another request's response.
type reply struct {
	buffers [1]mem.Buffer
	buffer  mem.SliceBuffer
	short   [72]byte // long enough for most responses with one descriptor
}

// IsSmall reports whether answer is a response of ShouldRateLimit that is too small to need conns.Answer.
func IsSmall(answer any) bool {
	r, ok := answer.(*reply)
	return ok && len(r.buffer) < 4<<10
}

func newReply(response []byte) *reply {
	r := new(reply)
	r.buffer = append(r.short[:0], response...)
	r.buffers[0] = &r.buffer
	return r
}

// call is one call of ShouldRateLimit: the decoded request and memory for its response. Calls are reused.
type call struct {
	*decide.Request

	message  mem.BufferSlice  // encoded request
	wire     []wireDescriptor // per descriptor of the request
	addend   uint32           // hits_addend of the request
	response []byte
	entries  int             // number in all descriptors, including those beyond the maximum
	ctx      context.Context //nolint:containedctx // context of the request, for enterLarge
	large    chan struct{}   // Service.large
	leave    func()          // ends the call's turn among large requests; nil if it has none
}

const (
	// maxSmall is the largest message in bytes that is decoded at once.
	maxSmall = 4 << 10
	// A request with more descriptors or entries is large.
	maxSmallDescriptors, maxSmallEntries = 32, 512
)

func (c *call) isLarge() bool {
	return len(c.wire) > maxSmallDescriptors || c.entries > maxSmallEntries
}

// enterLarge waits for a turn among large requests, unless the call has one. Its error is the context's, as a status.
func (c *call) enterLarge() error {
	if c.leave != nil {
		return nil
	}
	select {
	case c.large <- struct{}{}:
		c.leave = sync.OnceFunc(func() { <-c.large })
		return nil
	case <-c.ctx.Done():
		return status.FromContextError(c.ctx.Err()).Err()
	}
}

// wireDescriptor has the fields of a descriptor that decode converts.
type wireDescriptor struct {
	addend     wrapped[uint64] // hits_addend
	isNegative bool            // is_negative_hits
	limit      override
}

func (s *Service) get() *call {
	if c, ok := s.calls.Get().(*call); ok {
		return c
	}
	return &call{Request: s.o.Decider.NewRequest(), large: s.large}
}

// release empties the call and returns it to the pool. A large call ends its turn and is not pooled, because the pool
// would hold the memory of all calls that waited together.
func (s *Service) release(c *call) {
	if c.leave != nil {
		c.leave()
		return
	}
	c.reset()
	s.calls.Put(c)
}

func (c *call) reset() {
	c.Reset()
	c.message, c.wire, c.addend, c.response, c.entries, c.ctx = nil, c.wire[:0], 0, c.response[:0], 0, nil
}
