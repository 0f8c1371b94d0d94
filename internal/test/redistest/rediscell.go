package redistest

import (
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/launch"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// StartRedisCell is Start with the redis-cell module, which scripts/redis-cell.sh builds the first time. It skips the
// test without cargo, which only this module needs.
func StartRedisCell(tb testing.TB, args ...string) *Server {
	tb.Helper()
	proctest.SkipIfShort(tb, "redis-server and cargo")
	if _, err := exec.LookPath("cargo"); err != nil {
		tb.Skip("NOT TESTED: engine: redis_cell. To build the redis-cell module, get cargo from https://rustup.rs")
	}
	module, err := buildRedisCell()
	if err != nil {
		tb.Fatalf("build the redis-cell module: %v", err)
	}
	return Start(tb, append([]string{"--loadmodule", module}, args...)...)
}

// buildRedisCell builds the module once per process and returns its path.
var buildRedisCell = sync.OnceValues(func() (string, error) {
	script, err := launch.Above("scripts/redis-cell.sh")
	if err != nil {
		return "", err
	}
	out, err := exec.Command(script).Output()
	return strings.TrimSpace(string(out)), err
})
