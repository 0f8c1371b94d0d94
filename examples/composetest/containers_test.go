package composetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// inside is set where the test runs in namespaces of its own, to the directory of its files.
const inside = "WEIR_TEST_CONTAINERS"

// patience is how long a step may take on a busy machine.
const patience = 4 * time.Minute

// TestContainers builds the image as docker-compose.yml says, starts that file unchanged with podman-compose, and sends
// requests through its Envoy.
//
// The test runs itself again in namespaces of its own: ports and firewall rules meet nobody else's, there is no network,
// so nothing can come from an image registry, and everything ends with the namespaces. It needs root for that.
func TestContainers(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs containers: left out by -short")
	}
	if dir := os.Getenv(inside); dir != "" {
		runContainers(t, dir)
		return
	}
	if os.Getuid() != 0 {
		t.Fatal("running containers needs root: sudo make test, or go test -short")
	}
	for _, program := range []string{
		"podman", "runc", "iptables", "ip", "unshare", "setpriv", "/usr/lib/podman/netavark", "/usr/lib/podman/aardvark-dns",
		"redis-server", "../../.tools/venv/bin/podman-compose", "../../.tools/venv/bin/envoy",
	} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: make tools installs it", err)
		}
	}
	images := filepath.Join(tools(t), "images")
	command(t, "../../scripts/images.sh", images)
	command(t, "go", "-C", "../..", "mod", "download")
	command(t, "mkdir", "-p", filepath.Join(images, "gocache"))

	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	prepare := `ip link set lo up && mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /dev/shm && exec "$@"`
	cmd := exec.CommandContext(t.Context(), "setpriv", "--pdeathsig", "KILL",
		"unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", prepare, "sh",
		self, "-test.run=^TestContainers$", "-test.v", "-test.timeout", patience.String())
	cmd.Env = append(os.Environ(), inside+"="+dir)
	out, err := cmd.CombinedOutput()
	t.Logf("in the namespaces:\n%s", out)
	if err != nil {
		t.Error(err)
	}
	removeCgroups(t)
}

// tools is the real path of .tools: podman follows no symbolic link.
func tools(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../.tools")
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// runContainers is the test inside the namespaces.
func runContainers(t *testing.T, dir string) {
	configure(t, dir)
	images := filepath.Join(tools(t), "images")
	for _, args := range [][]string{
		{"golang.tar", "docker.io/library/golang:1.26", "ENV PATH=/usr/local/go/bin:/bin", "ENV GOPROXY=file:///modules", "ENV GOSUMDB=off"},
		{"distroless.tar", "gcr.io/distroless/static-debian12:nonroot"},
		{"envoy.tar", "docker.io/envoyproxy/envoy:v1.40.0", `ENTRYPOINT ["/usr/local/bin/envoy"]`},
		{"redis.tar", "docker.io/library/redis:7", "ENV PATH=/usr/local/bin:/bin", `ENTRYPOINT ["docker-entrypoint.sh"]`},
	} {
		load := []string{"import"}
		for _, change := range args[2:] {
			load = append(load, "--change", change)
		}
		command(t, "podman", append(load, filepath.Join(images, args[0]), args[1])...)
	}

	modules := strings.TrimSpace(command(t, "go", "env", "GOMODCACHE")) + "/cache/download"
	compose(t, "--podman-build-args", fmt.Sprintf("--layers=false -v %s:/modules:ro -v %s:/root/.cache/go-build",
		modules, filepath.Join(images, "gocache")), "build")
	if out := command(t, "podman", "run", "--rm", "--network", "none", "weir_weir", "version"); !strings.Contains(out, "dev") {
		t.Errorf("version in the image prints %q", out)
	}

	t.Cleanup(func() {
		if t.Failed() {
			for _, container := range []string{"weir_envoy_1", "weir_weir_1", "weir_redis_1"} {
				out, err := exec.Command("podman", "logs", container).CombinedOutput()
				t.Logf("%s: %v\n%s", container, err, out)
			}
		}
		compose(t, "down", "--timeout", "1")
	})
	compose(t, "up", "--detach")
	limited(t)
	health(t)
}

// configure points podman at storage and networks in the directory, and at what a container without systemd allows.
func configure(t *testing.T, dir string) {
	t.Helper()
	for name, text := range map[string]string{
		"containers.conf": `
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
network_config_dir = "DIR/networks"
`,
		"storage.conf":    "[storage]\ndriver = \"vfs\"\ngraphroot = \"DIR/storage\"\nrunroot = \"DIR/run\"\n",
		"registries.conf": "unqualified-search-registries = [\"docker.io\"]\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "DIR", dir)), 0o600); err != nil {
			t.Fatal(err)
		}
		variable := map[string]string{
			"containers.conf": "CONTAINERS_CONF", "storage.conf": "CONTAINERS_STORAGE_CONF", "registries.conf": "CONTAINERS_REGISTRIES_CONF",
		}[name]
		t.Setenv(variable, path)
	}
	t.Setenv("BUILDAH_ISOLATION", "chroot")
	t.Setenv("BUILDAH_FORMAT", "docker") // OCI images have no HEALTHCHECK
	t.Setenv("TMPDIR", dir)
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
			out, err := run("podman", "healthcheck", "run", container)
			if err != nil {
				log, _ := run("podman", "inspect", "--format", "{{json .State.Health}}", container)
				return fmt.Errorf("health of %s: %w: %s%s", container, err, out, log)
			}
			return nil
		})
	}
}

func await(t *testing.T, ready func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		err := ready()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func compose(t *testing.T, args ...string) {
	t.Helper()
	file := []string{"--project-name", "weir", "--file", "../docker-compose.yml"}
	command(t, filepath.Join(tools(t), "venv", "bin", "podman-compose"), append(file, args...)...)
}

// command runs a program and returns its output. It fails the test if the program fails.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	start := time.Now()
	out, err := run(name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	t.Logf("%s %s: %s", filepath.Base(name), strings.Join(args, " "), time.Since(start).Round(time.Millisecond))
	return out
}

// run returns the standard output, and if the program fails its standard error, too.
func run(name string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err != nil {
		return stdout.String() + stderr.String(), err
	}
	return stdout.String(), nil
}

// removeCgroups removes the control groups that podman leaves behind, if nobody's container is in them.
func removeCgroups(t *testing.T) {
	t.Helper()
	for _, pattern := range []string{"/sys/fs/cgroup/*/libpod_parent", "/sys/fs/cgroup/libpod_parent"} {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range dirs {
			children, _ := filepath.Glob(dir + "/libpod-*") // of a run that was killed
			for _, child := range append(children, dir+"/conmon", dir) {
				_ = os.Remove(child) // fails while a process is in it
			}
		}
	}
}
