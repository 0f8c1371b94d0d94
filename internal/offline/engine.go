// Package offline decides requests without a server: with real rules and real algorithms in virtual time, with its own
// counters in memory, so that the same requests always get the same decisions. An Engine decides requests, Simulate
// reports on generated requests (weir simulate), Compare on the requests of a log, and Changes compares the meaning of
// two rule sets (weir diff). A TestFile has requests with the expected decisions (weir test).
package offline

import (
	"context"
	"math"
	"sync/atomic"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// maxCounters is the maximum number of counters of an Engine that decides a log.
const maxCounters = 1_000_000

// Engine decides requests with one rule set, in the order of their times. It begins with unused counters.
type Engine struct {
	now     atomic.Int64 // the store's sweeper reads it, too
	store   *memstore.Store
	decider *decide.Decider
	request *decide.Request
}

// NewEngine returns an Engine. The caller must call Close.
func NewEngine(rules *descriptors.Set) (*Engine, error) {
	return newEngine(rules, maxCounters, decide.Config{RetryAfter: true})
}

func newEngine(rules *descriptors.Set, maxCounters int, config decide.Config) (*Engine, error) {
	e := &Engine{}
	config.MaxDescriptors = math.MaxInt
	var err error
	if e.store, err = memstore.New(memstore.Options{MaxCounters: maxCounters, Now: e.now.Load}); err != nil {
		return nil, err
	}
	e.decider, err = decide.New(decide.Options{
		Rules: func() *descriptors.Set { return rules }, Store: e.store,
		Config: config, MaxEntries: math.MaxInt, MaxEntryBytes: math.MaxInt,
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

// Evicted returns the number of counters that were dropped because there were too many.
func (e *Engine) Evicted() uint64 { return e.store.Stats().Evicted }

// Request is a request with its time in microseconds since the Unix epoch.
type Request struct {
	At          int64
	Domain      string
	Descriptors []decide.Descriptor
}

// Decide decides a request, whose time must not be before the previous one. A delayed request does not wait. The
// verdict is valid until the next call. Decide returns an error if the request is invalid or ctx is done.
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
	held.Keep() // requests in flight end with their lease
	held.Release(ctx)
	return &e.request.Verdict, e.request.Err
}
