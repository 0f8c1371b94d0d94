//go:build e2e

package envoymodule

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// What init writes for Weir inside Envoy works as it is: it limits as the comments say, and the commands that init
// prints show it. Only the ports are others.
func TestInit(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "ratelimit")
	printed := run(t, "init", "--for", "envoy-module", dir)
	text, err := os.ReadFile(filepath.Join(dir, "envoy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	addr := proctest.FreeAddr(t)
	_, app, _ := strings.Cut(proctest.FreeAddr(t), ":")
	e := proctest.StartEnvoyWith(t, strings.NewReplacer("127.0.0.1:8080", addr, "port_value: 10000", "port_value: 0",
		"port_value: 10001", "port_value: "+app, "0.0.0.0", "127.0.0.1").Replace(string(text)),
		proctest.EnvoyOptions{Workers: 2, Modules: moduleFolder(t), Dir: dir})
	c := newClient(t, e, "front")
	const burst, most = 20, 1000 // and one more each second
	began, passed := time.Now(), 0
	for ; passed < most; passed++ {
		r := c.Get(t, "/")
		if r.Status == http.StatusTooManyRequests {
			break
		}
		if r.Status != http.StatusOK || r.Body != "hello\n" || r.Header.Get("X-Ratelimit-Limit") == "" {
			t.Fatalf("%+v", r)
		}
	}
	if upTo := burst + time.Since(began).Seconds() + 1; passed < burst || float64(passed) > upTo {
		t.Errorf("%d requests passed, want from %d to %.0f", passed, burst, upTo)
	}
	commands := regexp.MustCompile(`(?m)^ +\S*weir ((?:top|get|check)\b.*)$`).FindAllStringSubmatch(printed, -1)
	if len(commands) != 3 {
		t.Fatalf("%d commands, want top, get and check:\n%s", len(commands), printed)
	}
	for _, command := range commands {
		args := strings.Fields(command[1])
		if args[0] == "check" {
			run(t, "check", filepath.Join(dir, args[1]))
			continue
		}
		server := "--server=unix:" + adminapi.Socket(adminapi.DefaultSocket, addr) // which shows values of keys
		if out := run(t, append(args, server)...); !strings.Contains(out, "remote_address=127.0.0.1") {
			t.Errorf("weir %s does not show the client:\n%s", command[1], out)
		}
	}
	rules := filepath.Join(dir, "rules", "clients.yaml")
	if text, err = os.ReadFile(rules); err != nil {
		t.Fatal(err)
	}
	proctest.Replace(t, rules, strings.Replace(string(text), "requests_per_unit: 60", "requests_per_unit: 30", 1))
	await(t, e, limitIs(t, c, "30"))
}
