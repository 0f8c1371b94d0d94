//go:build e2e

package composetest

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/podtest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// TestEnvoyModuleImage runs the image of the page about Weir inside Envoy with what weir init writes, sends requests
// until one is denied, and stops it.
func TestEnvoyModuleImage(t *testing.T) {
	if dir := podtest.Enter(t, root, patience, "gcc"); dir != "" {
		runEnvoyModuleImage(t, dir)
	}
}

// runEnvoyModuleImage is the test inside the namespaces.
func runEnvoyModuleImage(t *testing.T, dir string) {
	podtest.Configure(t, dir)
	podtest.Import(t, root, "envoy.tar")
	podtest.EnvoyModuleImage(t, root, "envoy-weir")

	inside := filepath.Join(dir, "weir-inside")
	command(t, proctest.WeirBinary(t), "init", "--for", "envoy-module", inside)
	command(t, "podman", "run", "--detach", "--name", "inside", "-p", "10000:10000", "-v", inside+":/etc/weir:ro",
		"-w", "/etc/weir", "envoy-weir", "-c", "envoy.yaml")
	t.Cleanup(func() {
		podtest.Logs(t)
		command(t, "podman", "rm", "--force", "--time", "1", "inside")
	})
	client := http.Client{Timeout: 5 * time.Second}
	send := func() (code int, header http.Header, err error) {
		res, err := client.Get("http://127.0.0.1:10000/")
		if err != nil {
			return 0, nil, err
		}
		return res.StatusCode, res.Header, res.Body.Close()
	}
	await(t, func() error {
		_, _, err := send()
		return err
	})
	const burst = 20 // rules/clients.yaml
	for passed := 1; ; passed++ {
		code, header, err := send()
		if err != nil || passed > 100*burst {
			t.Fatalf("after %d requests: %v", passed, err)
		}
		if code == http.StatusTooManyRequests {
			if passed < burst || header.Get("X-Envoy-Ratelimited") != "true" || header.Get("Retry-After") == "" {
				t.Errorf("after %d requests: %d %v", passed, code, header)
			}
			break
		}
	}
	command(t, "podman", "stop", "--time", "20", "inside")
	code := strings.TrimSpace(command(t, "podman", "inspect", "--format", "{{.State.ExitCode}}", "inside"))
	if code != "0" {
		t.Errorf("exit code %s", code)
	}
}
