package limitertest

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// faulty is a store that decides by the reference, atomically or not.
type faulty struct {
	mu    sync.Mutex
	state reference
	clock *Clock
	fault string
}

func (f *faulty) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	switch f.fault {
	case "hit by hit": // each hit is decided by itself: others see a request half done
		for i := range hits {
			f.locked(func() { f.state.take(f.clock.Now(), hits[i:i+1], out[i:i+1]) })
			runtime.Gosched()
		}
	case "read, then write": // somebody else's write in between is lost
		var seen reference
		f.locked(func() { seen = f.state.fork() })
		runtime.Gosched()
		seen.take(f.clock.Now(), hits, out)
		f.locked(func() {
			for _, h := range hits {
				f.state[h.Key] = seen[h.Key]
			}
		})
	default:
		f.locked(func() { f.state.take(f.clock.Now(), hits, out) })
	}
	return ctx.Err()
}

func (f *faulty) locked(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// TestLinearizableFinds has stores with a fault, and one without, checked: the faults are found and nothing else is.
func TestLinearizableFinds(t *testing.T) {
	for _, tt := range []struct {
		fault string
		want  error
	}{
		{"none", nil},
		{"read, then write", errNotLinearizable},
		{"hit by hit", errNotLinearizable},
	} {
		for _, name := range []string{"funnel", "sliding_log", "fixed_window"} {
			t.Run(tt.fault+"/"+name, func(t *testing.T) {
				clock := NewClock()
				store := &faulty{state: reference{}, clock: clock, fault: tt.fault}
				r := &recorder{clocks: []*Clock{clock}, stores: []limiter.Store{store}, policies: policiesOf(t, name)}
				var got error
				seed := uint64(0)
				for ; got == nil && seed < 20; seed++ {
					got = r.check(t, seed)
				}
				if !errors.Is(got, tt.want) {
					t.Errorf("after %d histories: %v, want %v", seed, got, tt.want)
				}
			})
		}
	}
}
