package embedded

import (
	"context"
	"sync"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Waiter gets the answer of a Call that is decided in a batch. Its methods are called on any goroutine, also before
// DecideInBatch returns, and must not block.
type Waiter interface {
	// Answered is called once, when the call's Answer is there. It returns false if the request has gone before.
	Answered(c *Call) (inTime bool)
	// BatchAnswered is called once, after Answered, when the requests that Redis decided in the same call have their
	// answers, too. The call's Answer is valid no longer.
	BatchAnswered()
	// IsGone reports whether the request has gone.
	IsGone() bool
}

// DecideInBatch decides what Decide could not, without a goroutine of the request's own, and ends the call. If it
// returns false, it has done nothing: the caller calls DecideLater. After true, Module.Send has to be called before
// long: the requests until then share a call to Redis.
func (c *Call) DecideInBatch(w Waiter) bool {
	if c.decided {
		return false
	}
	// Redis may have given the places when the request goes. Only the answer says so.
	c.waiter, c.outlives = w, c.request.TakesPlaces()
	f := c.filter
	f.uses.Add(1)
	begun := false
	panics.Catch("answer", func() { begun = f.decider.DecideLater(c.request, (*batchWaiter)(c)) })
	if !begun {
		c.waiter = nil
		f.drop()
		return false
	}
	f.module.waiting.add(f.instance)
	return true
}

// batchWaiter is a Call as what the store knows of it.
type batchWaiter Call

var _ limiter.Waiter = (*batchWaiter)(nil)

// Taken implements limiter.Waiter.
func (x *batchWaiter) Taken(err error) {
	c := (*Call)(x)
	defer func() { c.late = !c.waiter.Answered(c) }() // also after a panic: else the request waits for ever
	c.settle(func() (*decide.Verdict, error) {
		var gone error
		if err != nil && x.IsGone() {
			gone = context.Canceled
		}
		return c.filter.decider.Finish(context.Background(), c.request, err, gone)
	})
	c.observe()
}

// BatchTaken implements limiter.Waiter.
func (x *batchWaiter) BatchTaken() {
	c := (*Call)(x)
	f, w := c.filter, c.waiter
	if c.late && c.outlives {
		panics.Go("give back", func() {
			defer f.drop()
			c.GiveBackPlaces()
			c.Release()
		})
	} else {
		c.Release()
		f.drop()
	}
	w.BatchAnswered()
}

// IsGone implements limiter.Waiter.
func (x *batchWaiter) IsGone() bool { return !x.outlives && x.waiter.IsGone() }

// waiting are the instances with requests that DecideInBatch has begun, and that are not sent.
type waiting struct {
	mu        sync.Mutex
	instances []*instance
}

func (w *waiting) add(in *instance) {
	if in.waits.Swap(true) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.instances = append(w.instances, in)
}

// Send sends what DecideInBatch has begun, of all filters and threads. It does not block.
func (m *Module) Send() {
	w := &m.waiting
	w.mu.Lock()
	var few [4]*instance
	list := append(few[:0], w.instances...)
	clear(w.instances)
	w.instances = w.instances[:0]
	w.mu.Unlock()
	for _, in := range list {
		in.waits.Store(false) // before: what comes meanwhile is sent by the next Send
		in.app.Decider().Send()
	}
}
