package embedded

import (
	"sync"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/panics"
)

// Bounds of a collector, those of redisstore's workers: while few calls come, up to maxBatches of them are decided at a
// time, so that none waits for the answers to others; when a batch is busyBatch calls, one batch at a time.
const (
	maxBatches = 4
	busyBatch  = 8
)

// collector has the calls that an instance could not answer at once, and decides them in batches: a call to Redis costs
// the same for many as for one, and so does a goroutine. It is safe for concurrent use.
type collector struct {
	decider *decide.Decider

	mu      sync.Mutex
	waiting []*Call
	batches int // under way
	last    int // calls in the latest batch
}

// add puts the call into the next batch. begin has to be called before long.
func (k *collector) add(c *Call) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.waiting = append(k.waiting, c)
}

// begin starts a goroutine for the calls that wait, unless those under way have to take them. It does not block.
func (k *collector) begin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.waiting) > 0 && (k.batches == 0 || k.batches < maxBatches && k.last < busyBatch) {
		k.batches++
		panics.Go("requests", k.run)
	}
}

// run decides batch after batch until nothing waits.
func (k *collector) run() {
	for calls := k.next(); calls != nil; calls = k.next() {
		k.decide(calls)
	}
}

// next returns the calls that wait; nil ends the goroutine.
func (k *collector) next() (calls []*Call) {
	k.mu.Lock()
	defer k.mu.Unlock()
	calls, k.waiting = k.waiting, nil
	if k.last = len(calls); calls == nil {
		k.batches--
	}
	return calls
}

// decide decides a batch. Each of its calls is answered, whatever panics. The answers come first: what a request holds
// that has gone meanwhile, or is denied, is given back after them.
func (k *collector) decide(calls []*Call) {
	requests := make([]*decide.Request, len(calls))
	for i, c := range calls {
		requests[i] = c.request
	}
	if panics.Catch("requests", func() { k.decider.Decide(requests...) }) {
		for _, r := range requests {
			r.Err = decide.ErrPanicked
		}
	}
	for _, c := range calls {
		panics.Catch("answer", c.settle)
		if c.held.For() == 0 {
			c.deliver()
		}
	}
	for _, c := range calls {
		panics.Catch("end of a request", func() {
			if c.held.For() > 0 {
				c.wait()
			} else {
				c.end()
			}
		})
	}
}

// Send begins what Call.Later has collected, of all filters and threads. It does not block.
func (m *Module) Send() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, in := range m.instances {
		in.collector.begin()
	}
}
