package podtest

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// EnvoyModuleImage builds the unchanged Dockerfile of the page about Weir inside Envoy, with envoy.tar imported. Its
// base images consist of this machine's Go, gcc and Envoy. The machine must have gcc.
func EnvoyModuleImage(t *testing.T, root, tag string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs/operate/envoy-module.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)```dockerfile\n(.*?)```").FindSubmatch(page)
	if found == nil {
		t.Fatal("the page has no Dockerfile")
	}
	file := filepath.Join(t.TempDir(), "Dockerfile.envoy")
	if err := os.WriteFile(file, found[1], 0o600); err != nil {
		t.Fatal(err)
	}
	// The published image of Go has a C compiler. Here the machine's is mounted.
	Command(t, "podman", "import", "--change", "ENV PATH=/usr/local/go/bin:/usr/bin:/bin",
		"--change", "ENV GOPROXY=file:///modules", "--change", "ENV GOSUMDB=off",
		filepath.Join(Tools(t, root), "images", "golang.tar"), "docker.io/library/golang:1.26-bookworm")
	args := append([]string{"build", "-t", tag, "-f", file}, BuildArgs(t)...)
	for _, compiler := range []string{"/usr/bin", "/usr/lib", "/usr/include", "/lib/x86_64-linux-gnu", "/lib64"} {
		if path, err := filepath.EvalSymlinks(compiler); err == nil {
			args = append(args, "-v", path+":"+compiler+":ro")
		}
	}
	Command(t, "podman", append(args, root)...)
}
