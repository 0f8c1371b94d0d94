//go:build e2e

package composetest

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/podtest"
)

// docker is the docker of the page: podman-compose, with images that are built already. Its project has the name of
// the page's folder, weir.
const docker = `#!/usr/bin/env bash
[ "$1" = compose ] || exit 64
shift
args=()
for arg; do
  case $arg in
    --build) args+=(--no-build) ;;
    exec) args+=(exec -T) ;;
    *) args+=("$arg") ;;
  esac
done
PROGRAM --project-name weir "${args[@]}" 2>>"$TMPDIR/compose.log" || { cat "$TMPDIR/compose.log" >&2; exit 1; }
`

// page runs the commands of the page about Compose on a copy of the files that they use.
func page(t *testing.T) {
	t.Cleanup(func() {
		podtest.Logs(t)
		compose(t, "down", "--timeout", "1") // if the page has not come to that
	})
	files := t.TempDir()
	for _, name := range []string{
		"Dockerfile", "examples/docker-compose.yml", "examples/envoy.yaml", "examples/rules", "examples/prometheus",
		"examples/grafana",
	} {
		copyTo(t, files, name)
	}
	program := filepath.Join(podtest.Tools(t, root), "venv", "bin", "podman-compose")
	podtest.RunPage(t, filepath.Join(root, "docs", "start", "compose.md"), podtest.Setting{
		Files: files, Host: true, Env: environment("CONTAINERS_", "BUILDAH_"),
		Programs: map[string]string{"docker": strings.ReplaceAll(docker, "PROGRAM", program)},
	})
}

// environment returns the variables whose names begin with one of the prefixes.
func environment(prefixes ...string) []string {
	return slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(variable, p) })
	})
}

// copyTo copies a file or folder of the repository into a folder.
func copyTo(t *testing.T, dir, name string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(root, name), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, rel)), 0o755); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, rel), []byte(read(t, path)), 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
}
