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

// gcHeadroom is the maximum number of bytes to allocate between two collections, where Go's default allows fewer. With
// a heap of 4 MB, Go collects every 4 MB, and Weir every 64 MB. Weir uses at most a quarter of the memory limit.
const gcHeadroom = 64 << 20

// In another program's process, the headroom is at most 1/sharedPart of the container's memory.
const sharedPart = 16

// Values of GOGC, in percent.
const (
	gogcDefault = 100 // Go's default; the minimum
	gogcLoading = 300 // minimum during a hold, because loading rules allocates about twice the memory of the result
)

// holdRoom is the maximum number of bytes to allocate between two collections during a hold.
const holdRoom = 256 << 20

// minHeap is the heap, in bytes, below which Go does not collect at GOGC 100. It is proportional to GOGC.
const minHeap = 4 << 20

// GCPace makes Go's garbage collector run only as often as memory requires. Go's default collects too often, because
// Weir's heap is a few MB and Weir allocates as much every few milliseconds. It is safe for concurrent use.
type GCPace struct {
	// MemoryLimit is Go's soft limit in bytes: 90 % of the container's limit, or GOMEMLIMIT. math.MaxInt64 means no limit.
	MemoryLimit int64
	// Headroom is the number of bytes to allocate between two collections, or 0 if the environment sets GOGC.
	Headroom uint64

	before int

	mu      sync.Mutex // held while GOGC is set, because pace may run while Stop restores it
	stopped bool
	holds   int
}

// StartGCPace sets Go's memory limit from the container's limit, and adjusts GOGC to use the headroom, until Stop. It
// does not override the environment variables GOMEMLIMIT and GOGC. An error means that it cannot read the container's
// limit; then it sets no memory limit.
func StartGCPace() (*GCPace, error) {
	limit, err := memlimit.Set()
	return startGCPace(limit, gcHeadroom), err
}

// StartSharedGCPace is StartGCPace inside another program's process. It sets no memory limit, because Go's limit does
// not count that program's other memory. The headroom is at most 1/sharedPart of the container's limit.
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

// startGCPace adjusts GOGC to use a headroom of most bytes, or of a quarter of the limit if that is less.
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

// Hold delays collections during a large allocation unless memory runs short. When all holds are released, Weir
// collects once. A collection in the meantime would mark data that is still growing, and delay requests, because Go
// makes goroutines that allocate help with the marking.
func (p *GCPace) Hold() (release func()) {
	p.hold(1)
	return sync.OnceFunc(func() {
		p.mu.Lock()
		collect := p.holds == 1 && p.Headroom > 0 && !p.stopped
		p.mu.Unlock()
		if collect {
			runtime.GC() // before GOGC is restored, because the heap may exceed its goal
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

// gcCheck is the interval at which GOGC is adjusted. A cleanup of a garbage object would run after each collection, but
// up to a second late in a busy process, in which time the heap grew to 236 MB with a headroom of 64 MB.
const gcCheck = 50 * time.Millisecond

// pace adjusts GOGC every gcCheck until Stop.
func (p *GCPace) pace() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.stopped {
		p.adjust()
		time.AfterFunc(gcCheck, func() { panics.Catch("pace of the garbage collector", p.pace) })
	}
}

// adjust sets GOGC for the heap after the last collection. GOGC is a percentage of the live heap, stacks and globals:
// https://go.dev/doc/gc-guide#GOGC. The caller must hold p.mu.
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
	want = min(want, percent*5/4) // grow slowly, because the heap may have shrunk only for a moment
	if p.holds > 0 {
		want = max(want, min(gogcLoading, holdRoom*100/max(scanned, minHeap)))
	}
	if want*10 < percent*9 || want*10 > percent*11 { // not for less, because SetGCPercent stops the world
		debug.SetGCPercent(int(want)) //nolint:gosec // at most 1600
	}
}
