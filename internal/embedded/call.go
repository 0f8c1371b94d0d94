package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/decide/grpcerr"
	"github.com/weir-ratelimit/weir/internal/embedded/actions"
	"github.com/weir-ratelimit/weir/internal/panics"
)

// Waiter gets the answer of a Call that is decided later. Its methods are called on any goroutine, also before Later
// returns, and must not block.
type Waiter interface {
	// Answered is called once, when the call's Answer is there. It returns false if the request has gone before.
	Answered(c *Call) (inTime bool)
	// Ended is called once, after Answered, when those that were decided together have their answers, too. The call's
	// Answer is valid no longer.
	Ended()
}

// Call is one request: Filter.Call returns it, the caller fills it and calls Decide. If Decide returns false, it
// calls Later, which ends the call; else the Answer is valid until Release. What the end of a stream costs is a Call,
// too: the caller calls StreamDone instead. A Call is not safe for concurrent use.
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

// later is what a Call has that is decided later.
type later struct {
	ctx       context.Context //nolint:containedctx // of the request
	waiter    Waiter
	isDecided bool // only the delay is left
}

// Call begins a request on a route with the given configuration, nil if the route has none.
func (f *Filter) Call(route *Route) *Call {
	c, _ := f.calls.Get().(*Call) // New makes nothing else
	c.start = time.Now()
	c.domain, c.plan, c.SourceCluster = f.Domain, f.Plan, f.SourceCluster
	if route != nil {
		c.domain, c.plan, c.SourceCluster = cmp.Or(route.Domain, f.Domain), route.Plan, route.SourceCluster
	}
	return c
}

// Release ends the call. Its Answer is valid no longer.
func (c *Call) Release() {
	c.held.Release(context.Background())
	c.Request.Reset() //nolint:staticcheck // and not c.request
	c.Answer.reset()
	c.request.Reset()
	for i := range c.descriptors {
		clear(c.descriptors[i].Entries) // the values are not kept; the memory is
	}
	c.descriptors, c.later = c.descriptors[:0], later{}
	c.filter.calls.Put(c)
}

// Decide answers the request if nothing has to be waited for. It never blocks. If it returns false, the caller calls
// Later.
func (c *Call) Decide() (answered bool) {
	c.isDecided = c.try("request", (*actions.Plan).OnRequest)
	if !c.isDecided || c.held.For() > 0 {
		return false
	}
	c.observe()
	c.held.Keep()
	return true
}

// MayWait reports, after Decide, whether the request's limits may delay it.
func (c *Call) MayWait() bool { return c.held.For() > 0 || c.request.MayWait() }

// try decides the descriptors of a phase if nothing has to be waited for.
func (c *Call) try(name string, phaseOf func(*actions.Plan) *actions.Phase) (decided bool) {
	decided = true
	if panics.Catch(name, func() {
		c.descriptors = phaseOf(c.plan).Descriptors(&c.Request, c.descriptors[:0])
		if len(c.descriptors) == 0 {
			return // there is nothing to decide
		}
		c.request.Since = c.start
		if c.request.Err = c.describe(); c.request.Err == nil {
			decided = c.filter.decider.Try(c.request)
		}
	}) {
		decided, c.request.Err = true, decide.ErrPanicked
	}
	if decided {
		c.settle()
	}
	return decided
}

// settle makes the answer of what was decided, if anything was. A request whose decision panics is answered as one that
// cannot be decided.
func (c *Call) settle() {
	err := c.request.Err
	if err == nil && len(c.descriptors) > 0 &&
		panics.Catch("answer", func() { c.answer(&c.request.Verdict) }) {
		err = decide.ErrPanicked
	}
	if err == nil {
		return
	}
	c.filter.instance.app.Metrics().Rejected(status.Code(grpcerr.Status(err))) // failure_mode_deny says what becomes of it
	c.filter.Fail(&c.Answer)
	if errors.Is(err, decide.ErrPanicked) { // what the request has may be half made: others must not get it
		c.request, c.descriptors = c.filter.decider.NewRequest(), nil
	}
}

// maxCost is the largest cost of a descriptor, in the service too.
const maxCost = math.MaxUint32

// describe makes the request of the descriptors.
func (c *Call) describe() error {
	c.request.Domain = c.domain
	for i := range c.descriptors {
		d := &c.descriptors[i]
		cost := d.Cost(1)
		if cost > maxCost || cost < -maxCost {
			return &decide.InvalidError{Msg: fmt.Sprintf("descriptors[%d].hits_addend: must be at most %d, got %d", i,
				int64(maxCost), cost)}
		}
		c.request.Add(decide.Descriptor{Entries: d.Entries, Cost: cost, Own: d.Limit})
	}
	return nil
}

// Later decides what Decide could not, together with others, and ends the call. Module.Send has to be called before
// long. ctx is that of the request: see storekit.Call. A delay ends early when it is done.
func (c *Call) Later(ctx context.Context, w Waiter) {
	c.ctx, c.waiter = ctx, w
	c.filter.uses.Add(1)
	if c.isDecided {
		c.wait() //nolint:contextcheck // an instance closes without the request
		return
	}
	if !c.request.CountsInFlight() { // else Redis may have counted it when the request goes: only the answer says so
		c.request.Ctx = ctx
	}
	c.filter.instance.collector.add(c) // c may be another request's once it is in a batch
}

// wait delivers the answer when the request's turn has come, or when it has gone. It holds a timer, and no goroutine.
func (c *Call) wait() {
	deliver := sync.OnceFunc(func() {
		defer c.end()
		c.deliver()
	})
	ctx := c.ctx
	timer := time.AfterFunc(c.held.For(), func() { panics.Catch("answer", deliver) })
	context.AfterFunc(ctx, func() { // also after deliver, where it does nothing
		timer.Stop()
		panics.Catch("answer", deliver)
	})
}

// deliver gives the answer to the waiter.
func (c *Call) deliver() {
	panics.Catch("answer", func() {
		defer func() {
			if c.waiter.Answered(c) { // also after a panic: else the request waits for ever
				c.held.Keep()
			}
		}()
		c.observe()
	})
}

// end ends a call that has been answered. What has to be given back to a store is so in the background.
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

// StreamDone charges what the end of a stream costs, and gives back what it holds: the entries of rate_limits with
// apply_on_stream_done. It never blocks. What has to be waited for is done in the background. It ends the call.
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

// nobody waits for the answer to what the end of a stream costs.
type nobody struct{}

func (nobody) Answered(*Call) bool { return true }
func (nobody) Ended()              {}

// HitsAddend implements metadata.Costs: a request of the module has none of its own.
func (c *Call) HitsAddend() uint32 { return 0 }

// OwnHitsAddend implements metadata.Costs.
func (c *Call) OwnHitsAddend(i int) (hits uint64, ok bool) {
	d := &c.descriptors[i]
	return uint64(max(d.HitsAddend, -d.HitsAddend)), d.HasHitsAddend //nolint:gosec // it is not negative
}

// observe counts a request that had something to decide.
func (c *Call) observe() {
	if c.Answer.Outcome != NotLimited {
		c.filter.instance.app.Metrics().Requested(time.Since(c.start))
	}
}
