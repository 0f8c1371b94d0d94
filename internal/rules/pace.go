package rules

import (
	"sync"
	"time"
)

// A load works for loadWork, then pauses for loadPause, so that requests wait neither for a CPU nor, where a
// container's share of CPU time is limited, for the next period. 100,000 rules take about twice as long, and nearly all
// responses stay below 2 ms meanwhile, also on one CPU (docs/performance.md).
const (
	loadWork  = time.Millisecond
	loadPause = 500 * time.Microsecond
)

// callsPerLook is how many calls of rest pass without a look at the clock.
const callsPerLook = 4

// pacer interrupts long work. Its zero value is ready, and it is safe for concurrent use.
type pacer struct {
	mu    sync.Mutex
	calls int
	since time.Time
}

// rest is called between small parts of the work; callsPerLook of them should take less than loadWork. It pauses if the
// last pause is longer ago than loadWork.
func (p *pacer) rest() {
	if !p.isDue() {
		return
	}
	<-time.After(loadPause)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since = time.Now()
}

func (p *pacer) isDue() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	return p.calls%callsPerLook == 0 && time.Since(p.since) >= loadWork
}
