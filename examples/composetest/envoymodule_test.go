//go:build e2e

package composetest

import (
	"net/http"
	"os"
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
	buildEnvoyModuleImage(t)

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

// buildEnvoyModuleImage builds the unchanged Dockerfile of the page about Weir inside Envoy. Its base images consist of
// this machine's Go, gcc and Envoy.
func buildEnvoyModuleImage(t *testing.T) {
	t.Helper()
	found := submatches("(?s)```dockerfile\n(.*?)```", read(t, root+"/docs/operate/envoy-module.md"))
	if len(found) == 0 {
		t.Fatal("the page has no Dockerfile")
	}
	file := filepath.Join(t.TempDir(), "Dockerfile.envoy")
	if err := os.WriteFile(file, []byte(found[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	// The published image of Go has a C compiler. Here the machine's is mounted.
	command(t, "podman", "import", "--change", "ENV PATH=/usr/local/go/bin:/usr/bin:/bin",
		"--change", "ENV GOPROXY=file:///modules", "--change", "ENV GOSUMDB=off",
		filepath.Join(podtest.Tools(t, root), "images", "golang.tar"), "docker.io/library/golang:1.26-bookworm")
	args := append([]string{"build", "-t", "envoy-weir", "-f", file}, podtest.BuildArgs(t)...)
	for _, compiler := range []string{"/usr/bin", "/usr/lib", "/usr/include", "/lib/x86_64-linux-gnu", "/lib64"} {
		if path, err := filepath.EvalSymlinks(compiler); err == nil {
			args = append(args, "-v", path+":"+compiler+":ro")
		}
	}
	command(t, "podman", append(args, root)...)
}
