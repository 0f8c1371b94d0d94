package redistest

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// StartRedisCell is Start with the redis-cell module, which scripts/redis-cell.sh builds the first time. Without
// cargo, which Weir itself never needs, it skips the test and says so.
func StartRedisCell(tb testing.TB, args ...string) *Server {
	tb.Helper()
	if testing.Short() {
		tb.Skip("needs redis-server and cargo: left out by -short")
	}
	if _, err := exec.LookPath("cargo"); err != nil {
		tb.Skip("NOT TESTED: engine: redis_cell, for there is no cargo in PATH to build the redis-cell module with; https://rustup.rs has it")
	}
	module, err := buildRedisCell()
	if err != nil {
		tb.Fatalf("the redis-cell module cannot be built: %v", err)
	}
	return Start(tb, append([]string{"--loadmodule", module}, args...)...)
}

// buildRedisCell builds the module once a process and returns its path.
var buildRedisCell = sync.OnceValues(func() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		script := filepath.Join(dir, "scripts", "redis-cell.sh")
		if _, err := os.Stat(script); errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) {
			continue
		}
		out, err := exec.Command(script).Output()
		if failed, ok := errors.AsType[*exec.ExitError](err); ok {
			err = errors.New(string(failed.Stderr))
		}
		return strings.TrimSpace(string(out)), err
	}
})
