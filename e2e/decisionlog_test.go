//go:build e2e

package e2e

import (
	"testing"
	"time"
)

// Whoever reads the log of decisions from stdout may end: requests are answered on, and lines are counted as lost.
func TestReaderOfDecisionLogMayEnd(t *testing.T) {
	t.Parallel()
	s := newSidecar(t, ruleFile(t, modes), "--drain-delay", "0s", "--decision-log", "stdout", "--decision-log-sample", "1")
	s.LaunchVia(`exec "$0" "$@" > >(exec true)`)
	s.AwaitReady()
	conn := dial(t, s.GRPC)
	lost := func() bool {
		ask(t, conn, "free")
		return s.Metric(`weir_decision_log_dropped_total{reason="write_error"}`) > 0
	}
	await(t, 10*time.Second, "counted as lost", lost)
	if code := s.Terminate(20 * time.Second); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
