//go:build e2e

package envoymodule

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/test/partnertest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

const withHeaders = `"enable_x_ratelimit_headers": "DRAFT_VERSION_03"`

// limitIs returns nil if the limit that a request for the key probe shows is want; "" is no limit.
func limitIs(t *testing.T, c *client, want string) func() error {
	t.Helper()
	return func() error {
		if got, _, _ := strings.Cut(c.Get(t, "/", "x-key", "probe").Header.Get("X-Ratelimit-Limit"), ","); got != want {
			return fmt.Errorf("the limit is %q, want %q", got, want)
		}
		return nil
	}
}

// shows returns nil if the page at the URL has the text.
func shows(t *testing.T, url, want string) func() error {
	t.Helper()
	return func() error {
		if page := getPage(t, url); !strings.Contains(page, want) {
			return fmt.Errorf("%s does not have %s:\n%s", url, want, page)
		}
		return nil
	}
}

// Rules of a control plane come, change, and are refused. They and the counters stay while the control plane is away,
// and in updates of the listener.
func TestRulesByXDS(t *testing.T) {
	t.Parallel()
	plane := partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{})
	plane.Set("1", partnertest.Domain("shop", partnertest.Limit("key", "", 50)))
	addr := proctest.FreeAddr(t)
	flags := []string{"--rules=xds", "--xds-server=" + plane.Addr, "--xds-node-id=edge", "--http-addr=" + addr}
	u := startUpdatable(t, config(flags, byKey))
	if r := plane.Next(); r.GetNode().GetId() != "edge" {
		t.Errorf("the node is %q", r.GetNode().GetId())
	}
	status := "http://" + addr + "/status"
	c := newest(t, u.addr)
	update := func(config, limit string) {
		t.Helper()
		u.write(t, config)
		for range 20 { // by both workers
			await(t, u.Envoy, limitIs(t, c, limit))
		}
	}
	for range 10 {
		if r := c.Get(t, "/", "x-key", "ann"); r.Status != http.StatusOK {
			t.Fatalf("%+v", r)
		}
	}
	update(config(flags, byKey, withHeaders), "50")
	left := func(what, want string) {
		t.Helper()
		if err := remains(t, c, "ann", want); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	left("after an update of the listener", "39")

	plane.Set("2", partnertest.Domain("shop", partnertest.Limit("key", "", 20)))
	await(t, u.Envoy, limitIs(t, c, "20"))
	left("after a change", "8")

	wrong := partnertest.Domain("shop", partnertest.Limit("", "", 1))
	plane.Set("3", wrong, partnertest.Domain("other", partnertest.Limit("key", "", 7)))
	await(t, u.Envoy, shows(t, status, `"refused_domains": 1`))
	left("beside a domain with an error", "7")
	out := run(t, "status", "--server=http://"+addr)
	if !strings.Contains(out, "domain shop: descriptors[0]: the key is") {
		t.Errorf("weir status does not say what is wrong:\n%s", out)
	}
	if !strings.Contains(u.Output(), "rules from xDS refused") {
		t.Errorf("Envoy's log does not say what is wrong:\n%s", u.Output())
	}
	plane.Set("4", wrong) // nothing of it can be used
	for r := plane.Next(); r.GetErrorDetail() == nil; r = plane.Next() {
		continue
	}
	left("after an answer that was refused as a whole", "6")

	plane.Stop()
	await(t, u.Envoy, shows(t, status, `"connected": false`))
	run(t, "reload", "--server=unix:"+adminapi.Socket("auto", addr)) // the last rules are read once more
	left("while the control plane is away", "5")
	update(strings.Replace(config(flags, byKey, withHeaders), `"shop"`, `"other"`, 1), "7")
	update(config(flags, byKey, withHeaders), "20")
	left("after updates while the control plane is away", "4")
	// An update that needs a new Weir is refused. Envoy's main thread waits for the rules that long; its workers go on.
	u.write(t, config(append(flags, "--top-keys=7"), byKey, withHeaders))
	await(t, u.Envoy, func() error { // each time a request is answered
		if err := limitIs(t, c, "20")(); err != nil {
			t.Error(err)
		}
		if !strings.Contains(u.Output(), "no rules from xds://"+plane.Addr+" yet: Unavailable") {
			return errors.New("Envoy's log has no error of the new filter_config")
		}
		return nil
	})

	again := partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{Addr: plane.Addr})
	again.Set("1", partnertest.Domain("shop", partnertest.Limit("key", "", 30)))
	await(t, u.Envoy, limitIs(t, c, "30"))
	left("after the control plane has come back", "13")
	again.Set("2")
	await(t, u.Envoy, limitIs(t, c, "")) // no rules, no limit
	again.Set("3", partnertest.Domain("shop", partnertest.Limit("key", "", 30)))
	await(t, u.Envoy, limitIs(t, c, "30"))
	left("after rules that were gone", "12")

	update(config(append(flags, "--top-keys=8"), byKey, `"rate_limited_status": {"code": 430}`), "")
	again.Set("4", partnertest.Domain("shop", partnertest.Limit("key", "", 0)))
	await(t, u.Envoy, func() error {
		if r := c.Get(t, "/", "x-key", "probe"); r.Status != 430 {
			return fmt.Errorf("status %d", r.Status)
		}
		return nil
	})
	await(t, u.Envoy, shows(t, status, `"connected": true`))
	u.Signal(syscall.SIGTERM)
	if code := u.Wait(patience); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// Without the control plane Envoy does not start, and says why. With --allow-empty-rules it starts, and requests are
// undecided until rules come.
func TestStartWithoutTheControlPlane(t *testing.T) {
	t.Parallel()
	plane := partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{})
	plane.Stop()
	flags := []string{"--rules=xds", "--xds-server=" + plane.Addr}
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		front := listener("front", []string{moduleFilter(config(flags, byKey))}, toUpstream)
		e := proctest.LaunchEnvoy(t, bootstrap([]string{front}, []string{cluster("upstream", "127.0.0.1:1")}),
			proctest.EnvoyOptions{Modules: moduleFolder(t)})
		want := "--rules xds: no rules from xds://" + plane.Addr + " yet: Unavailable"
		if code := e.Wait(patience); code == 0 || !strings.Contains(e.Output(), want) {
			t.Errorf("exit code %d, want it to say %q:\n%s", code, want, e.Output())
		}
	})
	t.Run("allowed", func(t *testing.T) {
		t.Parallel()
		plane := partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{})
		plane.Stop()
		flags := []string{"--rules=xds", "--xds-server=" + plane.Addr, "--allow-empty-rules"}
		e := start(t, listener("open", []string{moduleFilter(config(flags, byKey))}, toUpstream),
			listener("closed", []string{moduleFilter(config(flags, byKey, `"failure_mode_deny": true`))}, toUpstream))
		opened, closed := newClient(t, e, "open"), newClient(t, e, "closed")
		if r := opened.Get(t, "/", "x-key", "ann"); r.Status != http.StatusOK {
			t.Errorf("without rules: %+v", r)
		}
		if r := closed.Get(t, "/", "x-key", "ann"); r.Status != http.StatusInternalServerError {
			t.Errorf("without rules, failure_mode_deny: %+v", r)
		}
		again := partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{Addr: plane.Addr})
		again.Set("1", partnertest.Domain("shop", partnertest.Limit("key", "", 0)))
		await(t, e, func() error {
			if r := opened.Get(t, "/", "x-key", "ann"); r.Status != http.StatusTooManyRequests {
				return fmt.Errorf("with rules: status %d", r.Status)
			}
			return nil
		})
		if r := closed.Get(t, "/", "x-key", "ann"); r.Status != http.StatusTooManyRequests {
			t.Errorf("with rules: %+v", r)
		}
	})
}
