package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/podtest"
)

// root is the module's root.
const root = "../.."

// TestImageRuns pulls the image of a small program with podman and runs it: as nobody, under both names, with
// certificate authorities, and with a HEALTHCHECK that podman keeps.
func TestImageRuns(t *testing.T) {
	if os.Getenv("WEIR_LONG") != "1" {
		t.Skip("runs containers: make long does it")
	}
	dir := podtest.Enter(t, root, 3*time.Minute)
	if dir == "" {
		return
	}
	podtest.Configure(t, dir)
	write(t, filepath.Join(dir, "policy.json"), `{"default": [{"type": "insecureAcceptAnything"}]}`)
	out := filepath.Join(dir, "out")
	var log strings.Builder
	err := run(t.Context(), []string{
		"-repo", smallRepository(t), "-out", out, "-quick", "-platforms", "linux/amd64",
	}, &log)
	if err != nil {
		t.Fatalf("%v\n%s", err, &log)
	}
	podtest.Command(t, "podman", "pull", "--quiet", "--signature-policy", filepath.Join(dir, "policy.json"),
		"oci-archive:"+filepath.Join(out, "weir_0.1.0_image.tar"))
	const image = imageName + ":0.1.0"
	for entrypoint, want := range map[string]string{
		"/bin/weir":      "v0.1.0 0 /bin/weir [a b] 65534 65534 authorities\n",
		"/bin/ratelimit": "v0.1.0 0 /bin/ratelimit [a b] 65534 65534 authorities\n",
	} {
		got := podtest.Command(t, "podman", "run", "--rm", "--network", "none", "--read-only", "--cap-drop", "all",
			"--entrypoint", entrypoint, image, "a", "b")
		if got != want {
			t.Errorf("%s says %q, want %q", entrypoint, got, want)
		}
	}
	format := `{{.HealthCheck.Test}} {{.Config.Entrypoint}} {{.Config.Cmd}} {{.Architecture}}`
	const config = "[CMD /bin/weir health --live --timeout 2s] [/bin/weir] [serve --rules /rules] amd64"
	if got := podtest.Command(t, "podman", "image", "inspect", "--format", format, image); strings.TrimSpace(got) != config {
		t.Errorf("the image has %s, want %s", got, config)
	}
}
