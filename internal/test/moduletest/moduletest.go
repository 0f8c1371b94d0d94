// Package moduletest builds libweir.so, Weir as a dynamic module of Envoy, for a test.
package moduletest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/launch"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// Folder returns the folder with libweir.so, which it builds once a process. It needs a C compiler. Under -short it
// skips the test.
func Folder(tb testing.TB) string {
	tb.Helper()
	proctest.SkipIfShort(tb, "the built module")
	path, err := build()
	if err != nil {
		tb.Fatal(err)
	}
	return filepath.Dir(path)
}

// build builds bin/test/libweir.so, or leaves it if it is up to date. One process builds at a time.
var build = sync.OnceValues(func() (path string, err error) {
	source, err := launch.Above("cmd/envoymodule")
	if err != nil {
		return "", err
	}
	root := filepath.Dir(filepath.Dir(source))
	path = filepath.Join(root, "bin", "test", "libweir.so")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	lock, err := os.Create(path + ".lock")
	if err != nil {
		return "", err
	}
	defer lock.Close() //nolint:errcheck // it is empty; closing it ends the lock
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-tags", "envoymodule", "-buildmode", "c-shared", "-o", path, "./cmd/envoymodule")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build libweir.so (make tools installs a C compiler): %w\n%s", err, out)
	}
	_, err = os.Stat(path) // results of tests are not reused when it changes
	return path, err
})
