// Package take asks the counters. A [Call] is what one request asks of them. Stages stand in front of the server that
// has the counters, and may answer for it: leases, cached denials, a circuit breaker. A [Chain] is the stages and the
// server, in order; a batch of calls passes it together.
package take

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// Call is what one request asks of the counters. Its owner keeps its memory; a zero Call with the fields of
// storekit.Call set is ready for a Chain.
type Call struct {
	storekit.Call
	// Notes are those of stages.
	Notes

	tried, answered bool
	passed          int // stages whose Before has not answered
}

// Notes are what stages write in Before for their own After.
type Notes struct {
	// Sent is when Leases saw the call, time since their start, and MayLease whether they may decide it.
	Sent     time.Duration
	MayLease bool
	// Asked is when Denials were asked, in microseconds of their clock, Forgets what they had forgotten by then, and
	// Caches whether they cached anything at all.
	Asked   int64
	Forgets uint64
	Caches  bool
	// Began is when the call went to the server.
	Began time.Time
	// Span is that of a call that is traced.
	Span trace.Span
}

// Stage stands in front of a server. Its methods never wait for anybody.
type Stage interface {
	// Before answers the call, by Out or Err, or notes what After needs. It is called once for each call.
	Before(c *Call) (answered bool)
	// After learns what became of a call that Before has let pass.
	After(c *Call)
}

// Server decides what no stage has answered.
type Server interface {
	// TakeAll returns when each call has its Out or its Err, as limiter.Store's Take has it.
	TakeAll(calls []*storekit.Call)
}

// Chain is stages in front of a server. It is a limiter.Store.
type Chain struct {
	stages []Stage
	server Server
}

var _ limiter.Store = (*Chain)(nil)

// Of returns the chain that the store is; of any other store, one without stages.
func Of(s limiter.Store) *Chain {
	if k, ok := s.(*Chain); ok {
		return k
	}
	if server, ok := s.(Server); ok {
		return &Chain{server: server}
	}
	return &Chain{server: oneByOne{s}}
}

// Behind returns the chain with one more stage in front of it.
func (k *Chain) Behind(s Stage) *Chain { return &Chain{append([]Stage{s}, k.stages...), k.server} }

// Try has the stages answer the call, and reports whether one did. It waits for nobody. If none did, the caller passes
// the call to TakeAll.
func (k *Chain) Try(c *Call) (answered bool) {
	k.before(c)
	if c.answered {
		k.after(c)
	}
	return c.answered
}

// TakeAll decides calls. It returns when each has its Out or its Err.
func (k *Chain) TakeAll(calls []*Call) {
	b, _ := batches.Get().(*batch) // New makes nothing else
	defer b.free()
	for _, c := range calls {
		if !c.tried {
			k.before(c)
		}
		if !c.answered {
			b.open = append(b.open, &c.Call)
		}
	}
	if len(b.open) > 0 {
		k.server.TakeAll(b.open)
	}
	for _, c := range calls {
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

// batch is the calls of a TakeAll that no stage has answered.
type batch struct{ open []*storekit.Call }

var batches = sync.Pool{New: func() any { return new(batch) }}

func (b *batch) free() {
	clear(b.open)
	b.open = b.open[:0]
	batches.Put(b)
}

// oneByOne is a store as a server.
type oneByOne struct{ limiter.Store }

func (s oneByOne) TakeAll(calls []*storekit.Call) {
	for _, c := range calls {
		c.Err = s.Take(c.Ctx, c.Hits, c.Out)
	}
}

// Memory is a store that never waits, as the stage that answers every call.
func Memory(s limiter.Store) *Chain { return (&Chain{}).Behind(memory{s}) }

type memory struct{ limiter.Store }

func (s memory) Before(c *Call) bool {
	c.Err = s.Take(c.Ctx, c.Hits, c.Out)
	return true
}

func (memory) After(*Call) {}
