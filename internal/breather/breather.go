// Package breather makes long work pause often, so that requests do not wait for its end: neither for a CPU, nor, where
// a container's share of CPU time is limited, for the next period.
package breather

import (
	"sync"
	"time"
)

// Work is how long work goes on, and Pause how long it is then interrupted: together they make 100,000 rules take about
// twice as long, and keep nearly all answers below 2 ms meanwhile, also on one CPU (docs/performance.md).
const (
	Work  = time.Millisecond
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
	if !b.tired() {
		return
	}
	<-time.After(Pause)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.since = time.Now()
}

func (b *Breather) tired() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls++
	return b.calls%every == 0 && time.Since(b.since) >= Work
}
