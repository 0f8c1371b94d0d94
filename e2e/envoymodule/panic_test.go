//go:build e2e

package envoymodule

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// bomb is code that panics for some values of x-key. It goes into a file of the module, behind a line of it.
type bomb struct{ file, after, code string }

var bombs = []bomb{
	{ // on Envoy's thread, before there is a decision
		"cmd/envoymodule/main.go", "for _, v := range unsafe.Slice(r.values, int(r.values_n)) {\n",
		`if string(view(v.text)) == "read" { panic("read") }`,
	},
	{ // where the decision is made: with Redis, and of what is delayed, in the background
		"internal/decide/decide.go", "\tv.held.wait, v.held.denied = v.Wait, v.Denied\n",
		`if v := r.Descriptors[0].Entries[0].Value; v[:min(6, len(v))] == "decide" { panic("decide") }`,
	},
	{ // after the decision
		"internal/embedded/call.go", "func (c *Call) observe() {\n",
		`if c.descriptors != nil {
			if v := c.descriptors[0].Entries[0].Value; v[:min(7, len(v))] == "observe" { panic("observe") }
		}`,
	},
}

// mined returns the folder with a module that has the bombs.
func mined(t *testing.T) string {
	t.Helper()
	proctest.SkipIfShort(t, "the built module")
	replaced := map[string]string{}
	for _, b := range bombs {
		path, err := filepath.Abs(filepath.Join("..", "..", b.file))
		if err != nil {
			t.Fatal(err)
		}
		text := replaced[path]
		if text == "" {
			read, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			text = string(read)
		}
		if strings.Count(text, b.after) != 1 {
			t.Fatalf("%s has not one line %q: mend this test", b.file, b.after)
		}
		replaced[path] = strings.Replace(text, b.after, b.after+b.code+"\n", 1)
	}
	dir := t.TempDir()
	for path, text := range replaced {
		file := filepath.Join(dir, filepath.Base(path))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replaced[path] = file
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	library, err := buildModule("mined/libweir.so", "envoymodule", "-overlay", file)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Dir(library)
}

// A panic of Weir, on Envoy's threads or its own, is caught and counted. The request is answered: if its decision
// panicked, by failure_mode_deny.
func TestPanics(t *testing.T) {
	folder := mined(t)
	const ruleFile = `
domain: shop
descriptors:
  - key: key
    value: decide-delayed
    rate_limit: {unit: second, requests_per_unit: 100, algorithm: leaky_queue, max_wait: 1s}
  - key: key
    value: observe-delayed
    rate_limit: {unit: second, requests_per_unit: 100, algorithm: leaky_queue, max_wait: 1s}
  - key: key
    rate_limit: {unit: year, requests_per_unit: 1000}
`
	for name, flags := range map[string][]string{
		"memory": nil,
		"redis":  {"--store=" + redistest.Start(t).URL(), "--store-timeout=5s"},
	} {
		t.Run(name, func(t *testing.T) {
			admin := proctest.FreeAddr(t)
			flags := append(slices.Clone(flags), rules(t, ruleFile), "--http-addr="+admin)
			filter := func(deny bool) []string {
				return []string{moduleFilter(config(flags, byKeyAtBothEnds(`{"number": 0}`),
					fmt.Sprintf(`"failure_mode_deny": %t, "status_on_error": {"code": 503}`, deny)))}
			}
			e := proctest.StartEnvoyWith(t, bootstrap([]string{
				listener("deny", filter(true), toUpstream), listener("allow", filter(false), toUpstream),
			}, []string{cluster("upstream", upstream(t))}), proctest.EnvoyOptions{Workers: 2, Modules: folder})
			for front, failed := range map[string]int{"deny": http.StatusServiceUnavailable, "allow": http.StatusOK} {
				c := newClient(t, e, front)
				for _, key := range []string{"read", "decide", "decide-delayed", "observe", "observe-delayed"} {
					before := metric(t, admin, "weir_panics_total")
					for range 3 {
						r := c.Get(t, "/", "x-key", key)
						if r.Status != failed && (r.Status != http.StatusOK || !strings.HasPrefix(key, "observe")) {
							t.Errorf("%s: %s: status %d, want %d", front, key, r.Status, failed)
						}
					}
					if n := metric(t, admin, "weir_panics_total") - before; n < 3 {
						t.Errorf("%s: %s: %.0f panics are counted, want at least 3", front, key, n)
					}
				}
				if r := c.Get(t, "/", "x-key", "ann"); r.Status != http.StatusOK {
					t.Errorf("%s: after the panics: status %d", front, r.Status)
				}
			}
			if code := e.Terminate(patience); code != 0 {
				t.Errorf("Envoy ended with code %d", code)
			}
		})
	}
}
