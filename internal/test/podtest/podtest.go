// Package podtest has the environments in which users run Weir: images, manifests, commands.
//
//   - Enter runs containers with podman, in separate namespaces: ports and firewall rules do not conflict with others,
//     there is no network, so images cannot come from a registry, and everything ends with the namespaces. It
//     requires root.
//   - StartCluster runs a Kubernetes API.
//   - RunPage runs the commands of a page of docs/.
//
// Use it if a promise needs a container, a cluster or a page's commands. For one program, proctest is faster.
package podtest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// inside is set if a test runs in separate namespaces, to the directory of its files.
const inside = "WEIR_TEST_CONTAINERS"

// images are the tar files that scripts/images.sh creates: file name, the image's name in users' files, and settings of
// the published image.
var images = [][]string{
	{
		"golang.tar", "docker.io/library/golang:1.26", "ENV PATH=/usr/local/go/bin:/bin", "ENV GOPROXY=file:///modules",
		"ENV GOSUMDB=off",
	},
	{"distroless.tar", "gcr.io/distroless/static-debian12:nonroot"},
	{"envoy.tar", "docker.io/envoyproxy/envoy:v1.40.0", `ENTRYPOINT ["/usr/local/bin/envoy"]`},
	{
		"redis.tar", "docker.io/library/redis:7", "ENV PATH=/usr/local/bin:/bin", `ENTRYPOINT ["docker-entrypoint.sh"]`,
		`CMD ["redis-server"]`,
	},
	{"statsd_exporter.tar", "docker.io/prom/statsd-exporter:v0.18.0"},
}

// Enter runs the test again in separate namespaces, with within as its time limit, and returns "" after that run. In
// that run it returns the directory of the test's files. programs are required in addition to podman. root is the path
// of the module's root. Tests that call Enter run in parallel. Under -short it skips the test.
func Enter(t *testing.T, root string, within time.Duration, programs ...string) (dir string) {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and runs containers: left out by -short")
	}
	if dir := os.Getenv(inside); dir != "" {
		return dir
	}
	if os.Getuid() != 0 {
		t.Fatal("running containers needs root: sudo make test, or go test -short")
	}
	for _, program := range append([]string{
		"podman", "runc", "catatonit", "iptables", "ip", "unshare", "setpriv",
		"/usr/lib/podman/netavark", "/usr/lib/podman/aardvark-dns", "redis-server",
		filepath.Join(root, ".tools/bin/statsd_exporter"), filepath.Join(root, ".tools/venv/bin/podman-compose"),
		filepath.Join(root, ".tools/venv/bin/envoy"),
	}, programs...) {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: scripts/tools.sh installs it", err)
		}
	}
	entered.Add(1)
	makeImages(t, root)
	t.Parallel()

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	prepare := `ip link set lo up && mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /dev/shm && exec "$@"`
	cmd := exec.CommandContext(t.Context(), "setpriv", "--pdeathsig", "KILL",
		"unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", prepare, "sh",
		self, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout", within.String())
	cmd.Env = append(os.Environ(), inside+"="+t.TempDir())
	out, err := cmd.CombinedOutput()
	t.Logf("in the namespaces:\n%s", out)
	if err != nil {
		t.Error(err)
	}
	if entered.Add(-1) == 0 {
		removeCgroups(t)
	}
	return ""
}

// entered counts the tests that have called Enter.
var entered atomic.Int32

// makeImages creates the tar files of the images, and downloads the modules that are compiled in containers.
func makeImages(t *testing.T, root string) {
	t.Helper()
	Command(t, filepath.Join(root, "scripts/images.sh"), filepath.Join(Tools(t, root), "images"))
	Command(t, "go", "-C", root, "mod", "download")
}

// Tools returns .tools without symbolic links, which podman does not follow.
func Tools(t *testing.T, root string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(root, ".tools"))
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Configure sets podman's storage and networks to the directory, and options for containers without systemd.
func Configure(t *testing.T, dir string) {
	t.Helper()
	for name, text := range map[string]string{
		"containers.conf": `
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
base_hosts_file = "DIR/hosts"
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
		"hosts":           localhost,
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "DIR", dir)), 0o600); err != nil {
			t.Fatal(err)
		}
		variable := map[string]string{
			"containers.conf": "CONTAINERS_CONF", "storage.conf": "CONTAINERS_STORAGE_CONF",
			"registries.conf": "CONTAINERS_REGISTRIES_CONF",
		}[name]
		if variable != "" {
			t.Setenv(variable, path)
		}
	}
	t.Setenv("BUILDAH_ISOLATION", "chroot")
	t.Setenv("BUILDAH_FORMAT", "docker") // OCI images have no HEALTHCHECK
	t.Setenv("TMPDIR", dir)
}

const localhost = "127.0.0.1 localhost\n"

// Hosts sets lines of /etc/hosts for containers that start later, in place of a cluster's DNS. They have precedence
// over podman's names.
func Hosts(t *testing.T, dir string, lines ...string) {
	t.Helper()
	text := localhost + strings.Join(lines, "\n") + "\n"
	if err := os.WriteFile(filepath.Join(dir, "hosts"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Logs logs the output of every container if the test has failed.
func Logs(t *testing.T) {
	t.Helper()
	if !t.Failed() {
		return
	}
	names, err := Run("podman", "ps", "--all", "--format", "{{.Names}}")
	if err != nil {
		t.Log(err, names)
	}
	for name := range strings.FieldsSeq(names) {
		out, err := exec.Command("podman", "logs", "--tail", "300", name).CombinedOutput()
		t.Logf("%s: %v\n%s", name, err, out)
	}
}

// Import imports the base images of Dockerfile and Compose files under the names that Dockerfile and Compose files use,
// from the given tar files or all.
func Import(t *testing.T, root string, files ...string) {
	t.Helper()
	for _, image := range images {
		if len(files) > 0 && !slices.Contains(files, image[0]) {
			continue
		}
		args := []string{"import"}
		for _, change := range image[2:] {
			args = append(args, "--change", change)
		}
		Command(t, "podman", append(args, filepath.Join(Tools(t, root), "images", image[0]), image[1])...)
	}
}

// BuildArgs returns the arguments of podman build with which the module's Dockerfile builds without a network and with
// this machine's Go cache. The image of Go consists of this machine's files, so both compile the same.
func BuildArgs(t *testing.T) []string {
	t.Helper()
	modules := strings.TrimSpace(Command(t, "go", "env", "GOMODCACHE")) + "/cache/download"
	cache := strings.TrimSpace(Command(t, "go", "env", "GOCACHE"))
	return []string{"--layers=false", "-v", modules + ":/modules:ro", "-v", cache + ":/root/.cache/go-build"}
}

// Command runs a program and returns its output. It fails the test if the program fails.
func Command(t *testing.T, name string, args ...string) string {
	t.Helper()
	start := time.Now()
	out, err := Run(name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	t.Logf("%s %s: %s", filepath.Base(name), strings.Join(args, " "), time.Since(start).Round(time.Millisecond))
	return out
}

// Run returns a program's standard output. Its error has the standard error.
func Run(name string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err != nil {
		return stdout.String() + stderr.String(), err
	}
	return stdout.String(), nil
}

// removeCgroups removes the empty control groups that podman leaves.
func removeCgroups(t *testing.T) {
	t.Helper()
	for _, pattern := range []string{"/sys/fs/cgroup/*/libpod_parent", "/sys/fs/cgroup/libpod_parent"} {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range dirs {
			children, _ := filepath.Glob(dir + "/libpod*") // of a killed run or of a pod
			for _, child := range append(children, dir+"/conmon", dir) {
				_ = os.Remove(child) // fails while the group has a process
			}
		}
	}
}
