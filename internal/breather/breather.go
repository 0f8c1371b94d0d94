// Package breather makes long work pause often, so that requests do not wait for its end: neither for a CPU, nor, where
// a container's share of CPU time is limited, for the next period.
package breather

import (
	"sync"
	"time"
)

// Work and Pause are how long work goes on and is then interrupted. Both are far below what a request may take, and the
// system's timers are no finer. Measured with a reload of 100,000 rules on 2 CPUs: docs/performance.md.
const (
	Work  = 500 * time.Microsecond
	Pause = 500 * time.Microsecond
)

// every is how many calls of Rest pass without a look at the clock.
const every = 4

// Breather interrupts work. Its zero value is ready, and it is safe for concurrent use.
type Breather struct {
	mu    sync.Mutex
	calls int
	since time.Time
}

// Rest is called between small pieces of work; 4 of them should take less than Work. It pauses if the last pause is
// longer ago than Work.
func (b *Breather) Rest() {
	if b.tired(time.Now) {
		time.Sleep(Pause)
		b.mu.Lock()
		b.since = time.Now()
		b.mu.Unlock()
	}
}

func (b *Breather) tired(now func() time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls++
	return b.calls%every == 0 && now().Sub(b.since) >= Work
}
