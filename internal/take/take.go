// Package take sends calls to the counters. A [Call] holds the hits of one request. Stages (leases, cached denials,
// circuit breaker) stand before the server that has the counters, and may answer a call without it. A [Chain] is the
// stages in order, then the server; a batch of calls passes it together.
package take

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// Call holds the hits of one request and their decisions. Its owner provides the memory. A zero Call whose
// storekit.Call is set is ready for a Chain.
type Call struct {
	storekit.Call
	// Notes has the notes of the stages.
	Notes

	tried, answered bool
	passed          int // number of stages whose Before did not answer
}

// Notes are values that a stage writes in Before and reads in After.
type Notes struct {
	// Sent is the time of this call since Leases started. MayLease reports whether Leases may decide the call.
	Sent     time.Duration
	MayLease bool
	// Asked is when Denials saw the call, in microseconds of its clock. Forgets is the number of calls of Forget and Drop
	// by then, and Caches reports whether the cache was enabled.
	Asked   int64
	Forgets uint64
	Caches  bool
	// Began is when the call was sent to the server.
	Began time.Time
	// Span is the span of a traced call.
	Span trace.Span
}

// Stage may answer calls before the server. Its methods must not block.
type Stage interface {
	// Before answers the call by setting Out or Err, or notes what After needs. It is called once per call.
	Before(c *Call) (answered bool)
	// After sees the result of a call that Before did not answer.
	After(c *Call)
}

// Server decides the calls that no stage answered.
type Server interface {
	// TakeAll returns when each call has its Out or its Err: see limiter.Store's Take.
	TakeAll(calls []*storekit.Call)
}

// Chain is a sequence of stages and a server. It is a limiter.Store.
type Chain struct {
	stages []Stage
	server Server
}

var _ limiter.Store = (*Chain)(nil)

var errPanicked = fmt.Errorf("%w: a stage panicked; the log has the stack", limiter.ErrUnavailable)

// Of returns s itself if it is a Chain, else a chain of s without stages.
func Of(s limiter.Store) *Chain {
	if k, ok := s.(*Chain); ok {
		return k
	}
	if server, ok := s.(Server); ok {
		return &Chain{server: server}
	}
	return &Chain{server: oneByOne{s}}
}

// Behind returns a chain with stage s before the stages of k.
func (k *Chain) Behind(s Stage) *Chain { return &Chain{append([]Stage{s}, k.stages...), k.server} }

// Try lets the stages answer the call, and reports whether one did. If none did, the caller must pass it to TakeAll.
func (k *Chain) Try(c *Call) (answered bool) {
	k.catchBefore(c)
	if c.answered {
		k.catchAfter(c)
	}
	return c.answered
}

// TakeAll decides calls. It returns when each has its Out or its Err. With several calls, as in Try, a panic in a
// stage's Before sets Err, and a panic in After keeps the result.
func (k *Chain) TakeAll(calls []*Call) {
	b, _ := batches.Get().(*batch) // the pool holds only *batch
	defer b.free()
	for _, c := range calls {
		if !c.tried && len(calls) == 1 {
			k.before(c)
		} else if !c.tried {
			k.catchBefore(c)
		}
		if !c.answered {
			b.open = append(b.open, &c.Call)
		}
	}
	if len(b.open) > 0 {
		k.server.TakeAll(b.open)
	}
	for _, c := range calls {
		if len(calls) > 1 {
			k.catchAfter(c)
		}
		k.after(c)
	}
}

// Take implements limiter.Store.
func (k *Chain) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	c := &Call{Call: storekit.Call{Ctx: ctx, Hits: hits, Out: out}}
	k.TakeAll([]*Call{c})
	return c.Err
}

func (k *Chain) before(c *Call) {
	c.tried = true
	for c.passed = 0; c.passed < len(k.stages); c.passed++ {
		if k.stages[c.passed].Before(c) {
			c.answered = true
			return
		}
	}
}

func (k *Chain) after(c *Call) {
	for c.passed > 0 {
		c.passed--
		k.stages[c.passed].After(c)
	}
}

// catchBefore answers the call with an error if a stage panics.
func (k *Chain) catchBefore(c *Call) {
	if panics.Catch("stage of a store", func() { k.before(c) }) {
		c.Err, c.answered = errPanicked, true
	}
}

// catchAfter shows the result to the other stages, too, if a stage panics.
func (k *Chain) catchAfter(c *Call) {
	for c.passed > 0 {
		panics.Catch("stage of a store", func() { k.after(c) })
	}
}

// batch holds the calls of one TakeAll that no stage answered.
type batch struct{ open []*storekit.Call }

var batches = sync.Pool{New: func() any { return new(batch) }}

func (b *batch) free() {
	clear(b.open)
	b.open = b.open[:0]
	batches.Put(b)
}

// oneByOne makes a Server of a store.
type oneByOne struct{ limiter.Store }

func (s oneByOne) TakeAll(calls []*storekit.Call) {
	for _, c := range calls {
		c.Err = s.Take(c.Ctx, c.Hits, c.Out)
	}
}

// Memory returns a chain whose only stage is s, a store that never blocks. The stage answers every call.
func Memory(s limiter.Store) *Chain { return (&Chain{}).Behind(memory{s}) }

type memory struct{ limiter.Store }

func (s memory) Before(c *Call) bool {
	c.Err = s.Take(c.Ctx, c.Hits, c.Out)
	return true
}

func (memory) After(*Call) {}
