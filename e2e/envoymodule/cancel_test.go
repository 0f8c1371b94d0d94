//go:build e2e

package envoymodule

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// twenty admits twenty requests at once.
const twenty = `
domain: shop
descriptors:
  - key: key
    rate_limit: {algorithm: concurrency, requests_per_unit: 20, lease: 10m}
`

// TestCancelledRequests has a client cancel requests for a second, again and again with a new Envoy: requests with and
// without a body, with trailers, and such that are denied or answered by another filter. Meanwhile nothing happens, or
// the listener and its routes change and are removed, or another Envoy takes over by hot restart. Envoy lives, Weir
// does not panic, and each request in flight is released.
//
// The long form (WEIR_LONG=1) starts 200 Envoys.
func TestCancelledRequests(t *testing.T) {
	meanwhile := []func(*cancelled){(*cancelled).nothing, (*cancelled).updates, (*cancelled).hotRestart}
	for name, flags := range map[string]func(t *testing.T) []string{
		"memory": func(*testing.T) []string { return nil },
		"redis": func(t *testing.T) []string {
			t.Helper()
			return []string{"--store=" + redistest.Start(t).URL(), "--store-timeout=5s"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var sum canceller
			var starts int64
			for i := range casetest.Pick(len(meanwhile), 100) {
				t.Run(strconv.Itoa(i), func(t *testing.T) {
					starts++
					x := newCancelled(t, append(flags(t), rules(t, twenty), "--dynamic-metadata", "--log-level=error"), i%3 == 2)
					x.run(meanwhile[i%3])
					sum.add(&x.client)
				})
			}
			t.Logf("%d starts: %d streams, %d of them reset, %d responses, %d connections lost", starts, sum.opened.Load(),
				sum.reset.Load(), sum.answered.Load(), sum.lost.Load())
			if opened := sum.opened.Load(); opened < 100*starts || sum.answered.Load() < opened/1000 {
				t.Error("the client did too little")
			}
		})
	}
}

// cancelled is an Envoy and a client that cancels requests to it.
type cancelled struct {
	*testing.T

	envoy   *proctest.Envoy
	launch  func(epoch int) *proctest.Envoy
	client  canceller
	flags   []string
	folder  string // of lds.yaml and rds.yaml
	version int
}

func newCancelled(t *testing.T, flags []string, hotRestart bool) *cancelled {
	t.Helper()
	up := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		sleep(r.Context(), time.Duration(rand.IntN(10))*time.Millisecond)
	})
	x := &cancelled{T: t, flags: flags, folder: t.TempDir(), client: canceller{addr: proctest.FreeAddr(t)}}
	x.writeRoutes()
	x.writeListener(flags)
	text := "node: {id: node, cluster: here}\ndynamic_resources: {lds_config: " + x.source("lds.yaml") + "}\n" +
		bootstrap(nil, []string{cluster("upstream", up)})
	x.launch = func(epoch int) *proctest.Envoy {
		o := proctest.EnvoyOptions{Workers: 2, Modules: moduleFolder(t), Args: []string{"--drain-time-s", "1"}}
		if hotRestart {
			o.HotRestart = true
			o.Args = append(o.Args, "--base-id", strconv.Itoa(1<<22+os.Getpid()), "--restart-epoch", strconv.Itoa(epoch),
				"--parent-shutdown-time-s", "2")
		}
		e := proctest.LaunchEnvoy(t, text, o)
		e.AwaitLive()
		return e
	}
	x.envoy = x.launch(0)
	return x
}

// source is a source of configuration that is a file.
func (x *cancelled) source(file string) string {
	return fmt.Sprintf("{resource_api_version: V3, path_config_source: {path: %s, watched_directory: {path: %s}}}",
		filepath.Join(x.folder, file), x.folder)
}

// cancelLimits count a request in flight until its stream is done.
var cancelLimits = byKeyAtBothEnds(`{"format": "` + leased + `", "is_negative_hits": true}`)

// denyLater is a filter behind Weir's that answers the request itself.
const denyLater = `{name: envoy.filters.http.fault, typed_config: {
  "@type": type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault,
  abort: {header_abort: {}, percentage: {numerator: 100}}}}`

// writeListener replaces the listener by one with other flags, or words of filter_config. No flags remove it.
func (x *cancelled) writeListener(flags []string, words ...string) {
	l := listener("front", []string{moduleFilter(config(flags, cancelLimits, append(words, withHeaders)...)), denyLater}, "")
	l = strings.Replace(l, "{address: 127.0.0.1, port_value: 0}", socketAddress(x.client.addr), 1)
	before, _, _ := strings.Cut(l[1:], "route_config:")
	l = `{"@type": type.googleapis.com/envoy.config.listener.v3.Listener, ` + before +
		"rds: {route_config_name: all, config_source: " + x.source("rds.yaml") + "}}}]}]}"
	if flags == nil {
		l = ""
	}
	proctest.Replace(x, filepath.Join(x.folder, "lds.yaml"), "resources: ["+l+"]\n")
}

// writeRoutes replaces the routes. One has a configuration of its own.
func (x *cancelled) writeRoutes() {
	x.version++
	proctest.Replace(x, filepath.Join(x.folder, "rds.yaml"), fmt.Sprintf(`resources: [{
"@type": type.googleapis.com/envoy.config.route.v3.RouteConfiguration, name: all, virtual_hosts: [
  {name: all, domains: ["*"], routes: [%s, {match: {prefix: /own}, route: {cluster: upstream}, typed_per_filter_config: %s}, %s]},
  {name: unused, domains: [version-%d]}]}]`,
		strings.TrimSuffix(lookRoute(), ", "), moduleRoute(`{"rate_limits": `+cancelLimits+`}`), toUpstream, x.version))
}

// run cancels requests while something happens.
func (x *cancelled) run(meanwhile func(*cancelled)) {
	x.Helper()
	c := newest(x.T, x.client.addr)
	released := func() error {
		r, err := c.Try(x, "/look", "x-key", "ann")
		if err == nil && r.Header.Get("X-Ratelimit-Remaining") != "20" {
			err = fmt.Errorf("%s of 20 requests in flight remain, status %d", r.Header.Get("X-Ratelimit-Remaining"), r.Status)
		}
		return err
	}
	x.envoy.Await(patience, released)
	ctx, cancel := context.WithCancel(x.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		x.client.run(ctx)
	}()
	meanwhile(x)
	cancel()
	<-ended
	x.envoy.Await(patience, released)
	if code := x.envoy.Terminate(patience); code != 0 {
		x.Errorf("Envoy ended with code %d", code)
	}
	if strings.Contains(x.envoy.Output(), "panic") {
		x.Error("Weir panicked")
	}
}

func (x *cancelled) nothing() { sleep(x.Context(), time.Second) }

func (x *cancelled) updates() {
	for i := range 10 {
		sleep(x.Context(), 100*time.Millisecond)
		switch i % 4 {
		case 0: // the same Weir
			x.writeListener(x.flags, `"status_on_error": {"code": 503}`)
		case 1:
			x.writeRoutes()
		case 2: // another Weir
			x.writeListener(append(slices.Clip(x.flags), "--top-keys=7"))
		case 3:
			x.writeListener(nil)
		}
	}
	x.writeListener(x.flags)
}

func (x *cancelled) hotRestart() {
	old := x.envoy
	x.envoy = x.launch(1)
	if code := old.Wait(patience); code != 0 {
		x.Errorf("the old Envoy ended with code %d", code)
	}
	if strings.Contains(old.Output(), "panic") {
		x.Error("Weir panicked in the old Envoy")
	}
}
