//go:build e2e

package composetest

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/podtest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// patience is how long the test may take on a busy machine.
const patience = 20 * time.Minute

// root is the module's root.
const root = "../.."

// TestContainers builds the image as docker-compose.yml says, starts that file unchanged with podman-compose, and sends
// requests through its Envoy.
// Then it starts what users of envoyproxy/ratelimit have, with only the image replaced: see dropin_test.go.
func TestContainers(t *testing.T) {
	if dir := podtest.Enter(t, root, patience); dir != "" {
		runContainers(t, dir)
	}
}

// runContainers is the test inside the namespaces.
func runContainers(t *testing.T, dir string) {
	podtest.Configure(t, dir)
	podtest.Import(t, root)
	compose(t, "--podman-build-args", strings.Join(podtest.BuildArgs(t), " "), "build")
	if out := command(t, "podman", "run", "--rm", "--network", "none", "weir_weir", "--version"); !strings.Contains(out,
		"dev") {
		t.Errorf("version in the image prints %q", out)
	}

	t.Run("as in docker-compose.yml", func(t *testing.T) {
		t.Cleanup(func() {
			podtest.Logs(t)
			compose(t, "down", "--timeout", "1")
		})
		compose(t, "up", "--detach")
		limited(t)
		health(t)
	})
	t.Run("page of the book", page)
	command(t, "podman", "tag", "weir_weir", peersImage)
	command(t, "podman", "tag", "docker.io/library/redis:7", "docker.io/library/redis:alpine")
	t.Run("Compose file with rules in files", composeFiles)
	t.Run("Compose file with statsd", composeStatsd)
	t.Run("pod of Istio's sample", func(t *testing.T) { istioSample(t, dir) })
	t.Run("pods of deploy/kubernetes", func(t *testing.T) { chartPods(t, dir) })
}

// limited sends requests through the published port until the client's limit denies one, and checks that a counter in
// Redis did it. The first requests may come before Redis listens, and pass.
func limited(t *testing.T) {
	t.Helper()
	const burst = 10 // rules/clients.yaml
	counters := func() int {
		n, err := strconv.Atoi(strings.TrimSpace(command(t, "podman", "exec", "weir_redis_1", "redis-cli", "dbsize")))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	client := http.Client{Timeout: 5 * time.Second}
	send := func() (int, error) {
		res, err := client.Get("http://127.0.0.1:10000/")
		if err != nil {
			return 0, err
		}
		_, err = io.Copy(io.Discard, res.Body)
		return res.StatusCode, errors.Join(err, res.Body.Close())
	}
	await(t, func() error {
		if status, err := send(); err != nil || status != http.StatusOK {
			return fmt.Errorf("the first request through Envoy: status %d, %w", status, err)
		}
		if counters() == 0 {
			return errors.New("no counter in Redis")
		}
		return nil
	})
	passed := 0
	for status := http.StatusOK; status == http.StatusOK; passed++ {
		var err error
		if status, err = send(); err != nil || (status != http.StatusOK && status != http.StatusTooManyRequests) {
			t.Fatalf("status %d, %v", status, err)
		}
		if passed > 100*burst {
			t.Fatalf("%d requests passed, the limit is a burst of %d", passed, burst)
		}
	}
}

// health runs the images' HEALTHCHECKs: podman would have systemd run them, which is not here.
func health(t *testing.T) {
	t.Helper()
	for _, container := range []string{"weir_redis_1", "weir_weir_1"} {
		await(t, func() error {
			out, err := podtest.Run("podman", "healthcheck", "run", container)
			if err != nil {
				log, _ := podtest.Run("podman", "inspect", "--format", "{{json .State.Health}}", container)
				return fmt.Errorf("health of %s: %w: %s%s", container, err, out, log)
			}
			return nil
		})
	}
}

func await(t *testing.T, ready func() error) {
	t.Helper()
	proctest.Await(t, 30*time.Second, ready)
}

func compose(t *testing.T, args ...string) {
	t.Helper()
	composeFile(t, "weir", "../docker-compose.yml", args...)
}

func composeFile(t *testing.T, project, file string, args ...string) {
	t.Helper()
	program := filepath.Join(podtest.Tools(t, root), "venv", "bin", "podman-compose")
	command(t, program, append([]string{"--project-name", project, "--file", file}, args...)...)
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	return podtest.Command(t, name, args...)
}
