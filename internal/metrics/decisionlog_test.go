package metrics_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/metrics"
)

func TestDecisionLog(t *testing.T) {
	m := newMetrics()
	stats := metrics.DecisionLogStats{Written: 7, Dropped: map[string]uint64{"rate": 2, "buffer": 0}}
	if err := m.WatchDecisionLog(func() metrics.DecisionLogStats { return stats }); err != nil {
		t.Fatal(err)
	}
	all, got := scrape(t, m), map[string]string{}
	for _, name := range []string{
		"weir_decision_log_lines_total", `weir_decision_log_dropped_total{reason="rate"}`, `weir_decision_log_dropped_total{reason="buffer"}`,
	} {
		got[name] = all[name]
	}
	want := map[string]string{
		"weir_decision_log_lines_total": "7", `weir_decision_log_dropped_total{reason="rate"}`: "2",
		`weir_decision_log_dropped_total{reason="buffer"}`: "0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
