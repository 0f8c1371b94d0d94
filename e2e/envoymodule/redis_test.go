//go:build e2e

package envoymodule

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// Two filters with counters in Redis decide exactly together. While Redis hangs, streams that are aborted, the failure
// policy, and SIGTERM do not harm Envoy.
func TestRedis(t *testing.T) {
	server := redistest.Start(t)
	flags := []string{
		rules(t, shop), "--store=" + server.URL(), "--store-timeout=2s", "--on-store-failure=deny", "--no-cached-denials",
	}
	filter := []string{moduleFilter(config(flags, byKey))}
	e := start(t, listener("front", filter, toUpstream), listener("side", filter, toUpstream))
	front, side := newClient(t, e, "front"), newClient(t, e, "side")
	passed := make(chan bool, 100)
	var wait sync.WaitGroup
	for i := range 4 {
		wait.Go(func() {
			for range 25 {
				r, err := []*client{front, side}[i%2].Try(t, "/", "x-key", "ann")
				if err != nil {
					t.Error(err)
				}
				passed <- r.Status == http.StatusOK
			}
		})
	}
	wait.Wait()
	close(passed)
	n := 0
	for ok := range passed {
		if ok {
			n++
		}
	}
	if n != 50 {
		t.Errorf("%d of 100 passed, want 50", n)
	}

	server.Pause()
	for range 50 {
		wait.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, front.URL, http.NoBody)
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("X-Key", "bob")
			if resp, err := front.HTTP.Do(req); err == nil {
				_ = resp.Body.Close()
			}
		})
	}
	wait.Wait()
	if r := front.Get(t, "/", "x-key", "cid"); r.Status != http.StatusTooManyRequests || r.Header.Get("Retry-After") != "" {
		t.Errorf("while Redis hangs: %+v, want the failure policy's denial", r)
	}
	for range 20 { // they hang while Envoy ends
		wait.Go(func() { _, _ = side.Try(t, "/", "x-key", "dan") })
	}
	if code := e.Terminate(patience); code != 0 {
		t.Errorf("Envoy ended with code %d", code)
	}
	wait.Wait()
}
