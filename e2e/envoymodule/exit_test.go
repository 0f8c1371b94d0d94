//go:build e2e

package envoymodule

import (
	"sync"
	"syscall"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// Go's runtime sends itself SIGURG to interrupt what runs for long. When Envoy exits it has taken the stack for signals
// from its main thread: Weir's Go code does not run there any more, or the process dies of the signal.
func TestSignalsWhileEnvoyExits(t *testing.T) {
	server := redistest.Start(t)
	flags := []string{rules(t, shop), "--store=" + server.URL(), "--store-timeout=2s"}
	e := start(t, listener("front", []string{moduleFilter(config(flags, byKey))}, toUpstream))
	c := newClient(t, e, "front")
	c.Get(t, "/", "x-key", "ann")
	server.Pause()
	var wait sync.WaitGroup
	for range 20 { // the exit waits for them
		wait.Go(func() { _, _ = c.Try(t, "/", "x-key", "ann") })
	}
	e.Signal(syscall.SIGTERM)
	for ended := false; !ended; {
		ended = e.Process.Process.Signal(syscall.SIGURG) != nil
	}
	if code := e.Wait(patience); code != 0 {
		t.Errorf("Envoy ended with code %d", code)
	}
	wait.Wait()
}
