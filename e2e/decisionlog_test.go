//go:build e2e

package e2e

import (
	"testing"
	"time"
)

// When the reader of a decision log on stdout ends, Weir still answers requests, and counts the lines that it drops.
func TestReaderOfDecisionLogMayEnd(t *testing.T) {
	t.Parallel()
	s := newWeir(t, ruleFile(t, modes), "--drain-delay", "0s", "--decision-log", "stdout", "--decision-log-sample", "1")
	s.LaunchVia(`exec "$0" "$@" > >(exec true)`)
	s.AwaitReady()
	conn := dial(t, s.GRPC)
	lost := func() bool {
		ask(t, conn, "free")
		return s.Metric(`weir_decision_log_dropped_total{reason="write_error"}`) > 0
	}
	await(t, 30*time.Second, "counted as lost", lost)
	if code := s.Terminate(20 * time.Second); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
