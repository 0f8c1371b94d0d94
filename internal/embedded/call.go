package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/embedded/actions"
	"github.com/weir-ratelimit/weir/internal/panics"
)

// Call is one request: Filter.Call returns it, the caller fills its Input and calls Decide. If Decide returns false, it
// calls DecideInBatch, and DecideLater if that returns false, too. The Answer is valid until Release. What the end of a
// stream costs is a Call, too: the caller calls StreamDone instead. A Call is not safe for concurrent use.
type Call struct {
	Input
	Answer Answer

	filter      *Filter
	domain      string
	plan        *actions.Plan
	request     *decide.Request
	descriptors []actions.Descriptor
	verdict     *decide.Verdict // once there is one
	start       time.Time
	name        string       // in logs
	delay       decide.Delay // of a request that waits for its turn
	decided     bool         // at once: only the delay is left
	batched
}

// batched is what a Call has that is decided in a batch.
type batched struct {
	waiter   Waiter
	outlives bool // the request: its answer is waited for after the request has gone
	late     bool // the request has gone before the answer
}

// Call begins a request on a route with the given configuration, nil if the route has none.
func (f *Filter) Call(route *Route) *Call {
	c, _ := f.calls.Get().(*Call) // New makes nothing else
	c.start, c.name = time.Now(), "request"
	c.domain, c.plan, c.sourceCluster = f.Domain, f.Plan, f.SourceCluster
	if route != nil {
		c.domain, c.plan, c.sourceCluster = cmp.Or(route.Domain, f.Domain), route.Plan, route.SourceCluster
	}
	return c
}

// Release ends the call. Its Answer is valid no longer.
func (c *Call) Release() {
	c.forget()
	c.Answer.reset()
	c.request.Reset()
	for i := range c.descriptors {
		clear(c.descriptors[i].Entries) // the values are not kept; the memory is
	}
	c.descriptors, c.verdict, c.delay, c.decided = c.descriptors[:0], nil, decide.Delay{}, false
	c.batched = batched{}
	c.filter.calls.Put(c)
}

// Decide answers the request if nothing has to be waited for. It never blocks. If it returns false, the caller calls
// DecideInBatch.
func (c *Call) Decide() (answered bool) {
	c.decided = c.decideAtOnce(c.plan.Descriptors)
	if !c.decided || c.delay.For > 0 {
		return false
	}
	c.observe()
	return true
}

// decideAtOnce decides the descriptors of the plan if nothing has to be waited for.
func (c *Call) decideAtOnce(plan func(actions.Request, []actions.Descriptor) []actions.Descriptor) (decided bool) {
	decided = true
	c.settle(func() (v *decide.Verdict, err error) {
		c.descriptors = plan(&c.Input, c.descriptors[:0])
		if len(c.descriptors) == 0 {
			return nil, nil //nolint:nilnil // there is nothing to decide
		}
		if err = c.describe(); err == nil {
			v, decided, err = c.filter.decider.DecideAtOnce(context.Background(), c.request)
		}
		return v, err
	})
	return decided
}

// decideRest asks the store for what was not decided at once.
func (c *Call) decideRest(ctx context.Context) {
	if c.request.TakesPlaces() {
		// Redis may have given the places when the request goes. Only the answer says so.
		ctx = context.WithoutCancel(ctx)
	}
	c.settle(func() (*decide.Verdict, error) { //nolint:contextcheck // a panic is logged without the request
		return c.filter.decider.DecideRest(ctx, c.request)
	})
}

// settle makes the answer of a verdict, if there is one yet. A request whose decision panics is answered as one that
// cannot be decided.
func (c *Call) settle(decided func() (*decide.Verdict, error)) {
	defer func() {
		if why := recover(); why != nil {
			c.filter.instance.panicked(c.name, why)
			// What the request holds may be half made: others must not get it.
			c.request = c.filter.decider.NewRequest()
			c.delay.End()
			c.descriptors, c.verdict, c.delay = nil, nil, decide.Delay{}
			c.filter.Fail(&c.Answer)
		}
	}()
	v, err := decided()
	switch {
	case err != nil: // failure_mode_deny says what becomes of it
		c.filter.instance.app.Metrics().Rejected(code(err))
		c.filter.Fail(&c.Answer)
	case v != nil:
		c.answer(v)
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

// DecideLater decides what Decide and DecideInBatch could not, in the background, and calls done once, on another
// goroutine. The caller ends ctx when the request is gone, and after done. In done it calls GiveBackPlaces if the
// request does not get the answer.
func (c *Call) DecideLater(ctx context.Context, done func()) {
	f := c.filter
	f.uses.Add(1)
	end := func() { //nolint:contextcheck // an instance closes without the request
		defer f.drop()
		defer done() // also after a panic: else the request waits for ever
		c.observe()
	}
	if c.decided {
		c.wait(ctx, end)
		return
	}
	panics.Go("answer", func() {
		c.decideRest(ctx)
		if c.delay.For > 0 {
			c.wait(ctx, end)
		} else {
			end()
		}
	})
}

// GiveBackPlaces gives back what a request holds of limits on requests in flight: its stream has ended before the
// answer came, so that the end of the stream gives nothing back. A denied request holds nothing any more. It may wait
// for the store.
func (c *Call) GiveBackPlaces() {
	if c.verdict == nil {
		return
	}
	panics.Catch("give back", func() {
		ctx, in := context.Background(), c.filter.instance
		if err := c.filter.decider.GiveBackPlaces(ctx, c.verdict); err != nil {
			in.log.LogAttrs(ctx, slog.LevelDebug, "places of a request in flight are free at the end of their lease only",
				slog.String("error", err.Error()))
		}
	})
}

// StreamDone charges what the end of a stream costs, and gives back what it holds: the entries of rate_limits with
// apply_on_stream_done. It never blocks. What has to be waited for is done in the background. It ends the call.
func (c *Call) StreamDone() {
	c.name = "end of a stream"
	if c.decideAtOnce(c.plan.StreamDone) {
		c.finish()
		return
	}
	f := c.filter
	f.uses.Add(1)
	panics.Go(c.name, func() {
		defer f.drop()
		c.decideRest(context.Background())
		c.finish()
	})
}

// finish ends a call that nobody waits for.
func (c *Call) finish() {
	c.delay.End()
	c.observe()
	c.Release()
}

// wait calls end when the request's turn has come, or when ctx is done. It holds a timer, and no goroutine.
func (c *Call) wait(ctx context.Context, end func()) {
	delay := c.delay
	finish := sync.OnceFunc(func() {
		defer end()
		delay.End()
	})
	timer := time.AfterFunc(delay.For, func() { panics.Catch("answer", finish) })
	context.AfterFunc(ctx, func() { // also after end, where it does nothing
		timer.Stop()
		panics.Catch("answer", finish)
	})
}

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

// code is by which an error is counted: the code that the service answers with.
func code(err error) codes.Code {
	if invalid := (*decide.InvalidError)(nil); errors.As(err, &invalid) {
		return codes.InvalidArgument
	}
	if code := status.FromContextError(err).Code(); code != codes.Unknown {
		return code
	}
	return codes.Unavailable
}
