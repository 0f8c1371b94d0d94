//go:build e2e

package envoymodule

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/test/envoytest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/internal/test/weirtest"
)

// run runs a command of weir and returns what it wrote.
func run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := weirtest.Run(t, args...)
	if err != nil {
		t.Errorf("weir %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// The commands, the page and the metrics show what Weir does inside Envoy, and change it.
func TestAdminAddress(t *testing.T) {
	addr := proctest.FreeAddr(t)
	e := start(t, listener("front", []string{moduleFilter(config([]string{
		rules(t, shop), "--http-addr=" + addr,
	}, byKey, `"enable_x_ratelimit_headers": "DRAFT_VERSION_03"`))}, toUpstream))
	c := newClient(t, e, "front")
	for range 52 {
		c.Get(t, "/", "x-key", "ann")
	}
	server := "--server=unix:" + adminapi.Socket("auto", addr)
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{[]string{"health"}, nil},
		{[]string{"status"}, []string{"ready", "memory"}},
		{[]string{"top"}, []string{"key=ann", "52"}},
		{[]string{"top", "--by=denied"}, []string{"key=ann", "2"}},
		{[]string{"explain", "--domain=shop", "key=ann"}, []string{"per-key", "OVER_LIMIT"}},
		{[]string{"get", "--domain=shop", "key=ann"}, []string{"per-key", "50 of 50"}},
	} {
		out := run(t, append(tt.args, server)...)
		for _, want := range tt.want {
			if !strings.Contains(out, want) {
				t.Errorf("weir %s does not show %q:\n%s", strings.Join(tt.args, " "), want, out)
			}
		}
	}

	if r := c.Get(t, "/", "x-key", "ann"); r.Status != http.StatusTooManyRequests {
		t.Fatalf("status %d", r.Status)
	}
	run(t, "reset", server, "--domain=shop", "key=ann")
	if err := remains(t, c, "ann", "49"); err != nil {
		t.Errorf("after the reset: %v", err)
	}
	if out := run(t, "reload", server); strings.Contains(out, "error") {
		t.Errorf("weir reload: %s", out)
	}

	for _, path := range []string{"/status", "/rules", "/top"} {
		var value any
		if err := json.Unmarshal([]byte(getPage(t, "http://"+addr+path)), &value); err != nil {
			t.Errorf("GET %s: %v", path, err)
		}
	}
	page := &envoytest.Client{HTTP: http.DefaultClient, URL: "http://" + addr}
	if r := page.Get(t, "/", "Accept", "text/html"); r.Status != http.StatusOK || !strings.Contains(r.Body, "<html") {
		t.Errorf("the page: %+v", r)
	}
	numbers := metrics(t, addr)
	for name, want := range map[string]string{
		`weir_decisions_total{domain="shop",limit="per-key",outcome="allowed",rule="key"}`: "51",
		`weir_panics_total`: "0",
	} {
		if got := numbers[name]; got != want {
			t.Errorf("metric %s is %q, want %s; there are %v", name, got, want, numbers)
		}
	}
}

// Rules that are published in Redis are loaded by the Weir inside Envoy.
func TestPublishedRules(t *testing.T) {
	server, folder := redistest.Start(t), t.TempDir()
	publish := func(text string) {
		t.Helper()
		proctest.Replace(t, filepath.Join(folder, "shop.yaml"), text)
		run(t, "publish", folder, "--store="+server.URL(), "--author=test")
	}
	publish(shop)
	flags := []string{"--rules=store", "--store=" + server.URL(), "--store-timeout=5s"}
	e := start(t, listener("front", []string{moduleFilter(config(flags, byKey,
		`"enable_x_ratelimit_headers": "DRAFT_VERSION_03"`))}, toUpstream))
	c := newClient(t, e, "front")
	if err := remains(t, c, "ann", "49"); err != nil {
		t.Error(err)
	}
	publish(strings.Replace(shop, "requests_per_unit: 50", "requests_per_unit: 20", 1))
	await(t, e, func() error {
		if r := c.Get(t, "/", "x-key", "probe"); !strings.HasPrefix(r.Header.Get("X-Ratelimit-Limit"), "20,") {
			return fmt.Errorf("the first rules answer: %v", r.Header)
		}
		return nil
	})
	if err := remains(t, c, "ann", "18"); err != nil {
		t.Errorf("after the second publication: %v", err)
	}
}
