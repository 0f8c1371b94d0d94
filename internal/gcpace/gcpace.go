// Package gcpace has the garbage collector run as often as memory asks for, and not as often as Go's default has it
// over a small heap: a sidecar keeps a few MB and throws away as much every few milliseconds.
package gcpace

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// headroom is what may be allocated between two collections, in bytes, where the heap itself asks for less: with a
// heap of 4 MB that is a collection every 64 MB instead of every 4. It is a quarter of the memory limit at most.
const headroom = 64 << 20

// least is Go's default GOGC, in percent: a heap above the headroom is collected as ever.
const least = 100

// roomy is GOGC while a Hold lasts, in percent: loading rules allocates about twice of what they take in the end.
const roomy = 300

// smallest is the heap that Go does not collect at GOGC 100, in bytes. It grows with GOGC.
const smallest = 4 << 20

// Pace is what Start has set.
type Pace struct {
	// MemoryLimit is Go's soft limit in bytes: 90 % of the container's, or GOMEMLIMIT. math.MaxInt64 is none.
	MemoryLimit int64
	// Headroom is what may be allocated between two collections, in bytes. 0: GOGC is set, and stands.
	Headroom uint64

	before int

	mu      sync.Mutex // held while GOGC is set: a collection may end while Stop gives it back
	stopped bool
	holds   int
}

// Start sets Go's memory limit from the container's, and keeps GOGC so that the headroom is used. The environment
// variables GOMEMLIMIT and GOGC, where they are set, stand. An error says that the container's limit cannot be
// read; then there is none.
func Start() (*Pace, error) {
	limit, err := memlimit.Set()
	p := &Pace{MemoryLimit: limit}
	if os.Getenv("GOGC") != "" {
		return p, err
	}
	p.Headroom = min(headroom, uint64(max(limit, 0))/4)
	p.before = debug.SetGCPercent(least)
	p.pace()
	return p, err
}

// Stop gives GOGC back.
func (p *Pace) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Headroom > 0 && !p.stopped {
		p.stopped = true
		debug.SetGCPercent(p.before)
	}
}

// Hold puts collections off while something large is made, unless memory runs short, and collects once when all holds are
// released. A collection in the middle would mark what is still growing, and have everybody who allocates help to get
// done in time: requests would wait for it (docs/performance.md).
func (p *Pace) Hold() (release func()) {
	p.hold(1)
	return sync.OnceFunc(func() {
		p.mu.Lock()
		collect := p.holds == 1 && p.Headroom > 0 && !p.stopped
		p.mu.Unlock()
		if collect {
			runtime.GC() // before GOGC is back: the heap may be above that goal
		}
		p.hold(-1)
	})
}

func (p *Pace) hold(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holds += n
	if p.Headroom > 0 && !p.stopped {
		p.adjust()
	}
}

// cycle is garbage from its beginning: that it is collected tells that a collection has ended.
type cycle struct{ _ *cycle }

// pace sets GOGC now and after each collection, until Stop.
func (p *Pace) pace() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.stopped {
		p.adjust()
		runtime.AddCleanup(&cycle{}, (*Pace).pace, p)
	}
}

// adjust sets GOGC for the heap as the last collection left it. It is a percentage of the live heap and of what else
// is scanned, stacks and globals: https://go.dev/doc/gc-guide#GOGC.
func (p *Pace) adjust() {
	now := []metrics.Sample{
		{Name: "/gc/gogc:percent"}, {Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"},
	}
	metrics.Read(now)
	percent, scanned := now[0].Value.Uint64(), uint64(0)
	for _, part := range now[1:] {
		scanned += part.Value.Uint64()
	}
	want := max(p.Headroom*100/max(scanned, smallest), least)
	if p.holds > 0 {
		want = max(want, roomy)
	}
	if want*10 < percent*9 || want*10 > percent*11 { // setting it stops the world
		debug.SetGCPercent(int(want)) //nolint:gosec // 1600 at most
	}
}
