package app

import (
	"errors"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/weir-ratelimit/weir/internal/panics"
)

// gcHeadroom is how many bytes may be allocated between two collections, where Go's default asks for less: with a heap
// of 4 MB Go collects every 4 MB, and Weir every 64. It is a quarter of the memory limit at most.
const gcHeadroom = 64 << 20

// sharedPart is the part of a container's memory that Weir's headroom takes in another program's process.
const sharedPart = 16

// Percentages for GOGC.
const (
	gogcDefault = 100 // Go's default, from a heap of gcHeadroom on
	gogcLoading = 300 // at least, during a hold: loading rules allocates about twice what it keeps
)

// holdRoom is how many bytes a hold may let be allocated between two collections.
const holdRoom = 256 << 20

// minHeap is the heap in bytes that Go does not collect at GOGC 100. It grows with GOGC.
const minHeap = 4 << 20

// GCPace makes Go's garbage collector run as often as memory requires, and not as often as its default has it with a
// small heap: a process keeps a few MB, and allocates as much every few milliseconds. It is safe for concurrent use.
type GCPace struct {
	// MemoryLimit is Go's soft limit in bytes: 90 % of the container's, or GOMEMLIMIT. math.MaxInt64 is none.
	MemoryLimit int64
	// Headroom is how many bytes may be allocated between two collections. 0: GOGC is set in the environment, and stands.
	Headroom uint64

	before int

	mu      sync.Mutex // held while GOGC is set: a collection may end while Stop restores it
	stopped bool
	holds   int
}

// StartGCPace sets Go's memory limit from the container's, and keeps GOGC so that the headroom is used. The environment
// variables GOMEMLIMIT and GOGC, where they are set, stand. An error says that the container's limit cannot be
// read; then there is none.
func StartGCPace() (*GCPace, error) {
	limit, err := memlimit.Set()
	return startGCPace(limit, gcHeadroom), err
}

// StartSharedGCPace is StartGCPace inside a process that is not Weir's alone. Go's memory limit counts Go's memory, and
// not that of the other code: one taken from the container would promise what that code has already. So there is none
// but GOMEMLIMIT, and the headroom is a sixteenth of the container's limit at most.
func StartSharedGCPace() (*GCPace, error) {
	most := uint64(gcHeadroom)
	container, err := memlimit.FromCgroup()
	switch {
	case err == nil:
		most = min(most, container/sharedPart)
	case errors.Is(err, memlimit.ErrNoLimit), errors.Is(err, memlimit.ErrNoCgroup):
		err = nil
	}
	return startGCPace(debug.SetMemoryLimit(-1), most), err
}

// startGCPace keeps GOGC so that the headroom is used: at most this one, or a quarter of the limit.
func startGCPace(limit int64, most uint64) *GCPace {
	p := &GCPace{MemoryLimit: limit}
	if os.Getenv("GOGC") == "" {
		p.Headroom = min(most, uint64(max(limit, 0))/4)
		p.before = debug.SetGCPercent(gogcDefault)
		p.pace()
	}
	return p
}

// Stop restores GOGC.
func (p *GCPace) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Headroom > 0 && !p.stopped {
		p.stopped = true
		debug.SetGCPercent(p.before)
	}
}

// Hold puts collections off while something large is made, unless memory runs short, and collects once when all holds
// are released. A collection in the middle would mark what is still growing, and have everybody who allocates help to
// get done in time: requests would wait for it.
func (p *GCPace) Hold() (release func()) {
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

func (p *GCPace) hold(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holds += n
	p.adjust()
}

// gcCheck is how often GOGC is adjusted. A cleanup of a garbage object would tell when a collection has ended, but in a
// busy process a second later: meanwhile the heap grew to 236 MB with a headroom of 64.
const gcCheck = 50 * time.Millisecond

// pace sets GOGC now and again, until Stop.
func (p *GCPace) pace() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.stopped {
		p.adjust()
		time.AfterFunc(gcCheck, func() { panics.Catch("pace of the garbage collector", p.pace) })
	}
}

// adjust sets GOGC for the heap as the last collection left it. It is a percentage of the live heap and of what else
// is scanned, stacks and globals: https://go.dev/doc/gc-guide#GOGC.
func (p *GCPace) adjust() {
	if p.Headroom == 0 || p.stopped {
		return
	}
	now := []metrics.Sample{
		{Name: "/gc/gogc:percent"},
		{Name: "/gc/heap/live:bytes"},
		{Name: "/gc/scan/stack:bytes"},
		{Name: "/gc/scan/globals:bytes"},
	}
	metrics.Read(now)
	percent, scanned := now[0].Value.Uint64(), uint64(0)
	for _, part := range now[1:] {
		scanned += part.Value.Uint64()
	}
	want := max(p.Headroom*100/max(scanned, minHeap), gogcDefault)
	want = min(want, percent*5/4) // a heap that has shrunk for a moment grows back
	if p.holds > 0 {
		want = max(want, min(gogcLoading, holdRoom*100/max(scanned, minHeap)))
	}
	if want*10 < percent*9 || want*10 > percent*11 { // setting it stops the world
		debug.SetGCPercent(int(want)) //nolint:gosec // 1600 at most
	}
}
