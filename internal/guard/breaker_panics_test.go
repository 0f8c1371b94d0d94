package guard

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/panics"
)

// A probe that panics is repeated.
func TestBreakerOutlivesPanics(t *testing.T) {
	breaking(t, func(t *testing.T, p *patient, b breakerStore) {
		var caught atomic.Int64
		defer panics.Handle(func(string, any, []byte) { caught.Add(1) })()
		p.fail(errSilent)
		for b.Open() == 0 {
			_ = ask(b, 1)
		}
		p.explodes.Store(true)
		time.Sleep(time.Minute)
		if n := caught.Load(); n < 30 || n > 61 {
			t.Errorf("%d probes panicked in a minute, want one in %s", n, panics.Pause)
		}
		p.explodes.Store(false)
		p.fail(nil)
		time.Sleep(2 * panics.Pause)
		if err := ask(b, 1); err != nil || b.Open() != 0 {
			t.Errorf("after the panics: %v, open %d", err, b.Open())
		}
	})
}
