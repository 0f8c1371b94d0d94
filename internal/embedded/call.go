package embedded

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/decide/grpcerr"
	"github.com/weir-ratelimit/weir/internal/embedded/actions"
	"github.com/weir-ratelimit/weir/internal/panics"
)

// Waiter receives the answer of a Call that is decided later. Its methods may run on any goroutine, even before Later
// returns. They must not block.
type Waiter interface {
	// Answered is called once, when the call's Answer is ready. It must return false if the request has been cancelled.
	Answered(c *Call) (inTime bool)
	// Ended is called once, after Answered of all calls of the same batch. The call's Answer is no longer valid.
	Ended()
}

// Call is one request. A caller gets it from Filter.Call, fills in the request and calls Decide. If Decide returns
// true, the Answer is valid until Release. If it returns false, the caller must call Later, which ends the call. For
// the end of a stream, the caller calls StreamDone instead. A Call is not safe for concurrent use.
type Call struct {
	actions.Request
	Answer Answer

	filter      *Filter
	domain      string
	plan        *actions.Plan
	request     *decide.Request
	descriptors []actions.Descriptor
	start       time.Time
	held        decide.Held
	later
}

// later has the state of a Call that is decided later.
type later struct {
	ctx       context.Context //nolint:containedctx // the request's
	waiter    Waiter
	isDecided bool // only the delay remains
}

// Call begins a request on a route with this configuration, or nil if the route has none.
func (f *Filter) Call(route *Route) *Call {
	c, _ := f.calls.Get().(*Call) // calls.New always returns a *Call
	c.start = time.Now()
	c.domain, c.plan, c.SourceCluster = f.Domain, f.Plan, f.SourceCluster
	if route != nil {
		c.domain, c.plan, c.SourceCluster = cmp.Or(route.Domain, f.Domain), route.Plan, route.SourceCluster
	}
	return c
}

// Release ends the call. Its Answer is no longer valid.
func (c *Call) Release() {
	c.held.Release(context.Background())
	c.Request.Reset() //nolint:staticcheck // not c.request
	c.Answer.reset()
	c.request.Reset()
	for i := range c.descriptors {
		clear(c.descriptors[i].Entries) // drop the values but keep the memory
	}
	c.descriptors, c.later = c.descriptors[:0], later{}
	c.filter.calls.Put(c)
}

// Decide decides the request if that needs no waiting. It never blocks. If it returns false, call Later.
func (c *Call) Decide() (answered bool) {
	c.isDecided = c.try("request", (*actions.Plan).OnRequest)
	if !c.isDecided || c.held.For() > 0 {
		return false
	}
	c.observe()
	c.held.Keep()
	return true
}

// MayWait reports, after Decide, whether a limit may delay the request.
func (c *Call) MayWait() bool { return c.held.For() > 0 || c.request.MayWait() }

// try decides the descriptors of a phase if that does not require waiting.
func (c *Call) try(name string, phaseOf func(*actions.Plan) *actions.Phase) (decided bool) {
	decided = true
	if panics.Catch(name, func() {
		c.descriptors = phaseOf(c.plan).Descriptors(&c.Request, c.descriptors[:0])
		if len(c.descriptors) == 0 {
			return // without descriptors there is nothing to decide
		}
		c.request.Since = c.start
		c.describe()
		decided = c.filter.decider.Try(c.request)
	}) {
		decided, c.request.Err = true, decide.ErrPanicked
	}
	if decided {
		c.settle()
	}
	return decided
}

// settle sets the answer after a decision. If the decision has panicked, the request counts as undecided.
func (c *Call) settle() {
	err := c.request.Err
	if err == nil && len(c.descriptors) > 0 &&
		panics.Catch("answer", func() { c.answer(&c.request.Verdict) }) {
		err = decide.ErrPanicked
	}
	if err == nil {
		return
	}
	c.filter.instance.app.Metrics().Rejected(status.Code(grpcerr.Status(err))) // failure_mode_deny selects the answer
	c.filter.Fail(&c.Answer)
	if errors.Is(err, decide.ErrPanicked) { // the request's memory may be inconsistent, so other calls must not reuse it
		c.request, c.descriptors = c.filter.decider.NewRequest(), nil
	}
}

// describe adds the descriptors to the request. Like Envoy, package actions bounds their costs.
func (c *Call) describe() {
	c.request.Domain = c.domain
	for i := range c.descriptors {
		d := &c.descriptors[i]
		c.request.Add(decide.Descriptor{Entries: d.Entries, Cost: d.Cost(1), Own: d.Limit})
	}
}

// Later decides the request in a batch, and ends the call. The caller must call Module.Send soon. If ctx, the request's
// context, is done, a delay ends early; see also storekit.Call.
func (c *Call) Later(ctx context.Context, w Waiter) {
	c.ctx, c.waiter = ctx, w
	c.filter.uses.Add(1)
	if c.isDecided {
		c.wait() //nolint:contextcheck // an instance closes without the request's context
		return
	}
	if !c.request.CountsInFlight() { // otherwise Redis's response must show whether the request was counted
		c.request.Ctx = ctx
	}
	c.filter.instance.collector.add(c) // once c is in a batch, it may become another request's
}

// wait delivers the answer when the delay ends or the request is cancelled. It uses a timer and no goroutine.
func (c *Call) wait() {
	deliver := sync.OnceFunc(func() {
		defer c.end()
		c.deliver()
	})
	ctx := c.ctx
	timer := time.AfterFunc(c.held.For(), func() { panics.Catch("answer", deliver) })
	context.AfterFunc(ctx, func() { // does nothing after deliver
		timer.Stop()
		panics.Catch("answer", deliver)
	})
}

// deliver passes the answer to the waiter.
func (c *Call) deliver() {
	panics.Catch("answer", func() {
		defer func() {
			if c.waiter.Answered(c) { // also after a panic, so that the request does not wait forever
				c.held.Keep()
			}
		}()
		c.observe()
	})
}

// end ends an answered call. If it must release hits in a store, it does so in the background.
func (c *Call) end() {
	f, w := c.filter, c.waiter
	if c.held.Owes() {
		held := c.held
		c.held = decide.Held{}
		panics.Go("give back", func() {
			defer f.drop()
			held.Release(context.Background())
		})
		c.Release()
	} else {
		c.Release()
		f.drop()
	}
	w.Ended()
}

// StreamDone charges or releases the hits of the entries with apply_on_stream_done, and ends the call. It never blocks,
// because it continues in the background if it has to wait.
func (c *Call) StreamDone() {
	if c.try("end of a stream", (*actions.Plan).OnStreamDone) {
		c.observe()
		c.held.Keep()
		c.Release()
		return
	}
	c.Later(context.Background(), nobody{})
	c.filter.module.Send()
}

// nobody is the Waiter for the end of a stream, whose answer is not used.
type nobody struct{}

func (nobody) Answered(*Call) bool { return true }
func (nobody) Ended()              {}

// HitsAddend implements metadata.Costs. In the module, a request has no hits_addend of its own.
func (c *Call) HitsAddend() uint32 { return 0 }

// OwnHitsAddend implements metadata.Costs.
func (c *Call) OwnHitsAddend(i int) (hits uint64, ok bool) {
	d := &c.descriptors[i]
	return uint64(max(d.HitsAddend, -d.HitsAddend)), d.HasHitsAddend //nolint:gosec // not negative
}

// observe counts a request that had descriptors.
func (c *Call) observe() {
	if c.Answer.Outcome != NotLimited {
		c.filter.instance.app.Metrics().Requested(time.Since(c.start))
	}
}
