package cli

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/app"
)

// Whatever hangs, serve ends in a bounded time after it was asked to.
func TestEndInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		o := &app.Options{StopOptions: app.StopOptions{DrainDelay: 2 * time.Second, StopTimeout: 5 * time.Second}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- endInTime(ctx, o, func() error { <-hang; return nil }) }()
		<-time.After(time.Hour) // as long as nobody tells it to, it runs
		synctest.Wait()
		if len(ended) > 0 {
			t.Fatal(<-ended)
		}
		begin := time.Now()
		cancel()
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "a part of the process hangs") {
			t.Errorf("error %v", err)
		}
		if took, want := time.Since(begin), o.StopBound(); took != want {
			t.Errorf("it took %s, want %s", took, want)
		}
		close(hang)
	})
}
