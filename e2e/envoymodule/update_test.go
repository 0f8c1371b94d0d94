//go:build e2e

package envoymodule

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// updatable is an Envoy whose listener comes from a file that the test changes.
type updatable struct {
	*proctest.Envoy

	addr, file string
	versions   int
}

// startUpdatable runs an Envoy with a listener with the module.
func startUpdatable(t *testing.T, filterConfig string) *updatable {
	t.Helper()
	u := &updatable{addr: proctest.FreeAddr(t), file: filepath.Join(t.TempDir(), "listeners.yaml")}
	u.write(t, filterConfig)
	u.Envoy = proctest.StartEnvoyWith(t, fmt.Sprintf("node: {id: node, cluster: here}\ndynamic_resources: {lds_config: "+
		"{resource_api_version: V3, path_config_source: {path: %q}}}\nstatic_resources: {clusters: [%s]}\n", u.file,
		cluster("upstream", upstream(t))), proctest.EnvoyOptions{Workers: 2, Modules: moduleFolder(t)})
	return u
}

// write replaces the file as Envoy wants it: by a rename.
func (u *updatable) write(t *testing.T, filterConfig string) {
	t.Helper()
	u.versions++
	text := listener("front", []string{moduleFilter(filterConfig)}, toUpstream)
	text = strings.Replace(text, "{address: 127.0.0.1, port_value: 0}", socketAddress(u.addr), 1)
	proctest.Replace(t, u.file, fmt.Sprintf(`{version_info: "%d", resources: [{
"@type": type.googleapis.com/envoy.config.listener.v3.Listener, %s]}`, u.versions, strings.TrimPrefix(text, "{")))
}

// newest is a client that never uses a connection twice: Envoy's old listener serves what was connected to it.
func newest(t *testing.T, addr string) *client {
	t.Helper()
	return &client{proctest.Client{
		HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}, URL: "http://" + addr,
	}}
}

// await polls until what returns nil.
func await(t *testing.T, e *proctest.Envoy, what func() error) {
	t.Helper()
	e.Await(patience, what)
}

// remains returns nil if a request leaves that many.
func remains(t *testing.T, c *client, key, want string) error {
	t.Helper()
	r := c.Get(t, "/", "x-key", key)
	if got := r.Header.Get("X-Ratelimit-Remaining"); got != want {
		return fmt.Errorf("status %d, %s of %s remain, want %s", r.Status, got, r.Header.Get("X-Ratelimit-Limit"), want)
	}
	return nil
}

// While a listener is updated, no request is lost. A new filter_config with the same flags keeps the counters, one with
// other flags has new ones, and one that is wrong changes nothing.
func TestListenerUpdate(t *testing.T) {
	flags := []string{rules(t, shop+"---\n"+strings.NewReplacer("domain: shop", "domain: other", "per_unit: 50", "per_unit: 3").
		Replace(shop))}
	const headers = `"enable_x_ratelimit_headers": "DRAFT_VERSION_03"`
	u := startUpdatable(t, config(flags, byKey))
	c := newest(t, u.addr)
	for range 10 {
		if r := c.Get(t, "/", "x-key", "ann"); r.Status != http.StatusOK || r.Header.Get("X-Ratelimit-Limit") != "" {
			t.Fatalf("before the update: %+v", r)
		}
	}

	var sent, lost atomic.Int64
	var wait sync.WaitGroup
	stop := make(chan struct{})
	end := sync.OnceFunc(func() {
		close(stop)
		wait.Wait()
	})
	defer end()
	steady := newClientTo(t, u.addr) // keeps its connections
	for i := range 4 {
		by := []*client{steady, newest(t, u.addr)}[i%2]
		wait.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
				sent.Add(1)
				if r, err := by.Try(t, "/", "x-key", "teapot"); err != nil || r.Status != http.StatusTooManyRequests {
					lost.Add(1)
					t.Errorf("while the listener is updated: %+v, %v", r, err)
					return
				}
			}
		})
	}

	awaitLimit := func(shown string) {
		await(t, u.Envoy, func() error {
			for range 30 { // each is a connection, to any worker: all of them must have the update
				r := c.Get(t, "/", "x-key", "probe")
				if limit := r.Header.Get("X-Ratelimit-Limit"); limit == "" || !strings.HasPrefix(limit, shown) {
					return fmt.Errorf("the old filter_config answers: %v", r.Header)
				}
			}
			return nil
		})
	}
	u.write(t, config(flags, byKey, headers))
	awaitLimit("")
	if err := remains(t, c, "ann", "39"); err != nil {
		t.Errorf("the same domain and flags: %v", err)
	}

	u.write(t, strings.Replace(config(flags, byKey, headers), `"shop"`, `"other"`, 1))
	awaitLimit("3,")
	if err := remains(t, c, "ann", "2"); err != nil {
		t.Errorf("another domain: %v", err)
	}

	u.write(t, config(flags, byKey, headers)) // and back
	awaitLimit("50,")
	if err := remains(t, c, "ann", "38"); err != nil {
		t.Errorf("the first domain again: %v", err)
	}

	u.write(t, config(append(flags, "--no-such-flag"), byKey))
	await(t, u.Envoy, func() error {
		if !strings.Contains(u.Output(), "unknown flag --no-such-flag") {
			return errors.New("Envoy's log has no error of the new filter_config")
		}
		return nil
	})
	if err := remains(t, c, "ann", "37"); err != nil {
		t.Errorf("after an update that was refused: %v", err)
	}

	u.write(t, config(append(flags, "--top-keys=7"), byKey, headers))
	await(t, u.Envoy, func() error {
		r := c.Get(t, "/", "x-key", "fresh")
		if r.Header.Get("X-Ratelimit-Remaining") == "49" && c.Get(t, "/", "x-key", "bob").Status == http.StatusOK {
			// Of two requests for a new key, the old Weir would have counted the first.
			return remains(t, c, "ann", "49")
		}
		return errors.New("the old flags answer")
	})
	end()
	if sent.Load() < 20 || lost.Load() > 0 {
		t.Errorf("%d of %d requests were lost", lost.Load(), sent.Load())
	}
}
