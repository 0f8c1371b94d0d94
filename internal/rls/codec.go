package rls

import (
	"context"
	"sync"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"github.com/weir-ratelimit/weir/internal/decide"
)

// Codec is gRPC's codec for protobuf, except that the service itself reads the requests and writes the replies of
// ShouldRateLimit, without an object for each of their messages: these cost more than deciding.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2(proto.Name)} }

type codec struct{ encoding.CodecV2 }

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	to, ok := v.(*call)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	if data.Len() > maxSmall { // the copies below take several times as much
		if err := to.enterLarge(); err != nil {
			return err
		}
	}
	buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buffer.Free()
	to.text = string(buffer.ReadOnlyData())
	return nil
}

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	r, ok := v.(*reply)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	return r.buffers[:], nil
}

// reply is an encoded response and what gRPC wants around it, in one allocation. It is never used again, so no request
// can read what another one has written.
type reply struct {
	buffers [1]mem.Buffer
	buffer  mem.SliceBuffer
	short   [72]byte // most answers to one descriptor
}

// IsSmall reports whether a server's answer is one of ShouldRateLimit that needs no conns.Answer.
func IsSmall(answer any) bool {
	r, ok := answer.(*reply)
	return ok && len(r.buffer) < 4<<10
}

// newReply copies the response.
func newReply(response []byte) *reply {
	r := new(reply)
	r.buffer = append(r.short[:0], response...)
	r.buffers[0] = &r.buffer
	return r
}

// call is one call of ShouldRateLimit: the request as it was decoded, and memory for its response. It is kept from call
// to call.
type call struct {
	*decide.Request

	text     string           // the request as it came
	wire     []wireDescriptor // one for each of the request's Descriptors
	addend   uint32           // the request's hits_addend
	response []byte
	entries  int             // of all descriptors, also those beyond what is admitted
	ctx      context.Context //nolint:containedctx // of the request, for enterLarge
	large    chan struct{}   // of the Service
	leave    func()          // ends the call's turn among large requests; nil without one
}

const (
	// maxSmall is the largest message in bytes that is decoded without a turn.
	maxSmall = 4 << 10
	// A request with more descriptors or entries is large.
	maxSmallDescriptors, maxSmallEntries = 32, 512
)

func (c *call) isLarge() bool {
	return len(c.wire) > maxSmallDescriptors || c.entries > maxSmallEntries
}

// enterLarge waits for the call's turn among large requests, unless it has it. The error is that of a client who has
// gone.
func (c *call) enterLarge() error {
	if c.leave != nil {
		return nil
	}
	select {
	case c.large <- struct{}{}:
		c.leave = sync.OnceFunc(func() { <-c.large })
		return nil
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
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
	return &call{Request: s.o.Decider.NewRequest(), large: s.large}
}

// release empties the call for another one. It keeps nothing of this one alive. A large call ends its turn, and is not
// kept: the pool would hold the memory of all that were waiting at the same time.
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
	c.text, c.wire, c.addend, c.response, c.entries, c.ctx = "", c.wire[:0], 0, c.response[:0], 0, nil
}
