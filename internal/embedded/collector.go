package embedded

import (
	"sync"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/panics"
)

// Bounds of a collector, like those of redisstore's workers. While batches are small, up to maxBatches of them are in
// flight, so that calls need not wait for each other. From a batch of busyBatch calls, only one batch is in flight.
const (
	maxBatches = 4
	busyBatch  = 8
)

// collector decides in batches the calls that an instance could not decide at once, because a call to Redis and a
// goroutine cost the same for one request as for many. It is safe for concurrent use.
type collector struct {
	decider *decide.Decider

	mu      sync.Mutex
	waiting []*Call
	batches int // number of batches in flight
	last    int // number of calls in the latest batch
}

// add puts the call into the next batch. The caller must call begin soon.
func (k *collector) add(c *Call) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.waiting = append(k.waiting, c)
}

// begin starts a goroutine that decides the waiting calls, unless maxBatches are in flight or the latest batch was
// busy: then a running goroutine decides them next. It does not block.
func (k *collector) begin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.waiting) > 0 && (k.batches == 0 || k.batches < maxBatches && k.last < busyBatch) {
		k.batches++
		panics.Go("requests", k.run)
	}
}

// run decides batches until no call waits.
func (k *collector) run() {
	for calls := k.next(); calls != nil; calls = k.next() {
		k.decide(calls)
	}
}

// next returns the waiting calls, or nil, which ends the goroutine.
func (k *collector) next() (calls []*Call) {
	k.mu.Lock()
	defer k.mu.Unlock()
	calls, k.waiting = k.waiting, nil
	if k.last = len(calls); calls == nil {
		k.batches--
	}
	return calls
}

// decide decides a batch. It answers each call even after a panic. It delivers all answers before it releases the hits
// of cancelled or denied requests.
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

// Send starts deciding the calls that Call.Later has collected, of all filters and threads. It does not block.
func (m *Module) Send() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, in := range m.instances {
		in.collector.begin()
	}
}
