//go:build e2e

package e2e

import (
	"os/exec"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// Whoever reads the log of decisions from stdout may end: requests are answered on, and lines are counted as lost.
func TestReaderOfDecisionLogMayEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("needs the built binary: left out by -short")
	}
	s := &sidecar{grpc: freeAddr(t), http: freeAddr(t)}
	s.Process = proctest.Start(t, "sidecar", exec.Command("bash", "-c", `exec "$0" "$@" > >(exec true)`, binary, "serve",
		"--rules", ruleFile(t, modes), "--grpc-addr", s.grpc, "--http-addr", s.http, "--drain-delay", "0s",
		"--decision-log", "stdout", "--decision-log-sample", "1"))
	s.Await(20*time.Second, func() error { return s.ready(t.Context()) })
	conn := dial(t, s.grpc)
	lost := func() bool {
		ask(t, conn, "free")
		return series(t, []*sidecar{s}, `weir_decision_log_dropped_total{reason="write_error"}`) > 0
	}
	await(t, 10*time.Second, "counted as lost", lost)
	if code := s.Terminate(20 * time.Second); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
