//go:build e2e

package envoymodule

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/launch"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// moduleFolder returns the folder with libweir.so, which it builds once a process. It needs a C compiler. Under -short
// it skips the test.
func moduleFolder(tb testing.TB) string {
	tb.Helper()
	proctest.SkipIfShort(tb, "the built module")
	path, err := build()
	if err != nil {
		tb.Fatalf("scripts/tools.sh installs a C compiler: %v", err)
	}
	return filepath.Dir(path)
}

var build = sync.OnceValues(func() (path string, err error) { return buildModule("libweir.so", "envoymodule") })

// buildModule builds as make module and the image of the docs do, so that all of them share Go's cache.
func buildModule(name, tags string, args ...string) (path string, err error) {
	return launch.Build(name, "cmd/envoymodule",
		append(args, "-tags", tags, "-buildmode", "c-shared", "-trimpath", "-pgo", "cmd/weir/default.pgo")...)
}

// sanitizers find memory faults and undefined behaviour of C.
var sanitizers = []string{"-fsanitize=address,undefined", "-g"}

// sanitized returns a program that calls the module's hooks as Envoy does, and the module, both built to find memory
// faults: in the long form also in Go. It skips the test if the C compiler cannot do that.
func sanitized(tb testing.TB) (driver, library string) {
	tb.Helper()
	proctest.SkipIfShort(tb, "the built module")
	dir := tb.TempDir()
	if out, err := compile("-x", "c", "-o", filepath.Join(dir, "empty"), "-"); err != nil {
		tb.Skipf("the C compiler has no AddressSanitizer: %v\n%s", err, out)
	}
	driver = filepath.Join(dir, "driver")
	if out, err := compile("-O1", "-rdynamic", "-o", driver, "testdata/driver.c", "-ldl", "-lpthread"); err != nil {
		tb.Fatalf("compile driver.c: %v\n%s", err, out)
	}
	var args []string
	name := "sanitized/libweir.so"
	if casetest.IsLong() {
		args, name = []string{"-asan"}, "sanitized/libweir-go.so"
	}
	library, err := buildModule(name, "envoymodule sanitize", args...)
	if err != nil {
		tb.Fatal(err)
	}
	return driver, library
}

// compile runs the C compiler. A program comes from standard input if the arguments say so.
func compile(args ...string) ([]byte, error) {
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	cmd := exec.Command(cc, append(append([]string{}, sanitizers...), args...)...)
	cmd.Stdin = strings.NewReader("int main(void) { return 0; }")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return out, fmt.Errorf("%s: %w", cmd, err)
	}
	return out, nil
}
