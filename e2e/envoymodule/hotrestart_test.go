//go:build e2e

package envoymodule

import (
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// An Envoy takes over from another by hot restart: no request is lost, and counters in Redis go on.
func TestHotRestart(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	addr := proctest.FreeAddr(t)
	_, port, _ := strings.Cut(addr, ":")
	flags := []string{
		rules(t, shop), "--store=" + server.URL(), "--store-timeout=2s", "--on-store-failure=deny",
		"--http-addr=" + proctest.FreeAddr(t), // both Envoys have it
	}
	l := strings.Replace(listener("front", []string{moduleFilter(config(flags, byKey))}, toUpstream), "port_value: 0",
		"port_value: "+port, 1)
	text := bootstrap([]string{l}, []string{cluster("upstream", upstream(t))})
	begin := func(epoch int) *proctest.Envoy {
		return proctest.LaunchEnvoy(t, text, proctest.EnvoyOptions{
			Workers: 2, Modules: moduleFolder(t), HotRestart: true, Args: []string{
				"--base-id", strconv.Itoa(os.Getpid()), "--restart-epoch", strconv.Itoa(epoch),
				"--drain-time-s", "1", "--parent-shutdown-time-s", "2",
			},
		})
	}
	old := begin(0)
	old.AwaitLive()
	c := &client{proctest.Client{
		HTTP: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}, Timeout: patience}, URL: "http://" + addr,
	}}
	t.Cleanup(c.HTTP.CloseIdleConnections)
	for range 30 {
		if r := c.Get(t, "/", "x-key", "ann"); r.Status != http.StatusOK {
			t.Fatalf("before the restart: %+v", r)
		}
	}

	stop := make(chan struct{})
	var wait sync.WaitGroup
	var answers atomic.Int64
	for range 4 {
		wait.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				r, err := c.Try(t, "/", "x-key", "busy")
				if err != nil || r.Status != http.StatusOK && r.Status != http.StatusTooManyRequests {
					t.Errorf("during the restart: %+v, %v", r, err)
				}
				answers.Add(1)
			}
		})
	}
	next := begin(1)
	next.AwaitLive()
	if code := old.Wait(patience); code != 0 {
		t.Errorf("the old Envoy ended with code %d:\n%s", code, old.Output())
	}
	close(stop)
	wait.Wait()
	passed := 0
	for range 30 {
		if r := c.Get(t, "/", "x-key", "ann"); r.Status == http.StatusOK {
			passed++
		}
	}
	if passed != 20 || answers.Load() == 0 {
		t.Errorf("after the restart %d passed, want 20, the rest of the limit; %d answers meanwhile", passed, answers.Load())
	}
	if code := next.Terminate(patience); code != 0 {
		t.Errorf("the new Envoy ended with code %d:\n%s", code, next.Output())
	}
}
