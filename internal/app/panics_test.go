package app

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/panics"
)

// In a process that outlives panics, a part that panics runs again, and one that panics when it is closed is an error.
func TestPartsOutlivePanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var caught atomic.Int64
		defer panics.Handle(func(string, any, []byte) { caught.Add(1) })()
		runs, start := 0, time.Now()
		err := runPart(t.Context(), &part{name: "part", run: func(context.Context) error {
			if runs++; runs == 1 {
				panic("boom")
			}
			return context.Canceled
		}})
		if runs != 2 || time.Since(start) != panics.Pause || err != context.Canceled { //nolint:errorlint // this very one
			t.Errorf("%d runs in %s, %v; want another after a pause", runs, time.Since(start), err)
		}
		err = closeInTime("part", time.Second, func() error { panic("boom") })
		synctest.Wait() // until the handler has taken the panic, too
		if err == nil || !strings.Contains(err.Error(), "panicked") || caught.Load() != 2 {
			t.Errorf("close: %v, %d panics caught, want 2", err, caught.Load())
		}
	})
}
