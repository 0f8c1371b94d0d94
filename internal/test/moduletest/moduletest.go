// Package moduletest builds libweir.so, Weir as a dynamic module of Envoy, for a test.
package moduletest

import (
	"path/filepath"
	"sync"
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
		tb.Fatalf("make tools installs a C compiler: %v", err)
	}
	return filepath.Dir(path)
}

var build = sync.OnceValues(func() (path string, err error) {
	return launch.Build("libweir.so", "cmd/envoymodule", "-tags", "envoymodule", "-buildmode", "c-shared")
})
