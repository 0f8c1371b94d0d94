package composetest

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/podtest"
)

// modulePage is the page about Weir inside Envoy.
const modulePage = root + "/docs/operate/envoy-module.md"

// TestEnvoyModuleImage builds the Dockerfile of the page about Weir inside Envoy, word for word, runs the image with
// what weir init writes, sends requests until one is denied, and stops it. The base images are made of this machine's
// Go, gcc and Envoy.
func TestEnvoyModuleImage(t *testing.T) {
	if dir := podtest.Enter(t, root, patience, "gcc"); dir != "" {
		runEnvoyModuleImage(t, dir)
	}
}

// runEnvoyModuleImage is the test inside the namespaces.
func runEnvoyModuleImage(t *testing.T, dir string) {
	podtest.Configure(t, dir)
	podtest.Import(t, root, "envoy.tar")
	// The published image of Go has a C compiler. Here it is the machine's, which is mounted.
	command(t, "podman", "import", "--change", "ENV PATH=/usr/local/go/bin:/usr/bin:/bin", "--change",
		"ENV GOPROXY=file:///modules", "--change", "ENV GOSUMDB=off",
		filepath.Join(podtest.Tools(t, root), "images", "golang.tar"), "docker.io/library/golang:1.26-bookworm")
	found := regexp.MustCompile("(?s)```dockerfile\n(.*?)```").FindStringSubmatch(read(t, modulePage))
	if found == nil {
		t.Fatalf("%s has no Dockerfile", modulePage)
	}
	file := filepath.Join(dir, "Dockerfile.envoy")
	if err := os.WriteFile(file, []byte(found[1]), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"build", "-t", "envoy-weir", "-f", file}, podtest.BuildArgs(t, root)...)
	for _, compiler := range []string{"/usr/bin", "/usr/lib", "/usr/include", "/lib/x86_64-linux-gnu", "/lib64"} {
		if path, err := filepath.EvalSymlinks(compiler); err == nil {
			args = append(args, "-v", path+":"+compiler+":ro")
		}
	}
	command(t, "podman", append(args, root)...)

	inside := filepath.Join(dir, "weir-inside")
	command(t, "go", "-C", root, "run", "./cmd/sidecar", "init", "--for", "envoy-module", inside)
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
