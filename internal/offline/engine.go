// Package offline says what rules would do, without a server: by real rules and real steps in virtual time, with
// counters of its own in memory, so that the same requests always get the same answers. An Engine decides requests,
// Simulate shows what becomes of generated ones (weir simulate), Compare what two rule sets make of recorded ones, and
// Changes what means something else in one set than in another (weir diff).
package offline

import (
	"context"
	"math"
	"sync/atomic"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// maxCounters bounds the counters of an Engine that decides a log.
const maxCounters = 1_000_000

// Engine decides requests by one rule set, in the order of their times. It begins with unused counters.
type Engine struct {
	now     atomic.Int64 // the store's sweeper reads it, too
	store   *memstore.Store
	decider *decide.Decider
	request *decide.Request
}

// NewEngine returns an Engine, which the caller closes.
func NewEngine(rules *descriptors.Set) (*Engine, error) { return newEngine(rules, maxCounters) }

func newEngine(rules *descriptors.Set, maxCounters int) (*Engine, error) {
	e := &Engine{}
	var err error
	if e.store, err = memstore.New(memstore.Options{MaxKeys: maxCounters, Now: e.now.Load}); err != nil {
		return nil, err
	}
	e.decider, err = decide.New(decide.Options{
		Rules: func() *descriptors.Set { return rules }, Store: e.store,
		Config:     decide.Config{MaxDescriptors: math.MaxInt, RetryAfter: true},
		MaxEntries: math.MaxInt, MaxEntryBytes: math.MaxInt,
	})
	if err != nil {
		e.Close()
		return nil, err
	}
	e.request = e.decider.NewRequest()
	return e, nil
}

// Close frees the counters.
func (e *Engine) Close() {
	e.store.Close() //nolint:gosec // never fails
}

// Evicted is how many counters were forgotten because there were too many.
func (e *Engine) Evicted() uint64 { return e.store.Stats().Evicted }

// Request is a request at a time in microseconds since the Unix epoch.
type Request struct {
	At          int64
	Domain      string
	Descriptors []decide.Descriptor
}

// Decide decides a request that is not earlier than the one before. Nobody waits in virtual time. The verdict is valid
// until the next call. The error says what is wrong with the request, or that ctx is done.
func (e *Engine) Decide(ctx context.Context, r *Request) (*decide.Verdict, error) {
	e.now.Store(r.At)
	e.request.Reset()
	e.request.Domain = r.Domain
	for _, d := range r.Descriptors {
		e.request.Add(d)
	}
	e.request.Ctx = ctx
	e.decider.Decide(e.request)
	held := e.request.Verdict.TakeHeld()
	held.Keep() // requests in flight end at the end of their lease
	held.Release(ctx)
	return &e.request.Verdict, e.request.Err
}
