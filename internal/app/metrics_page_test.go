package app

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/internal/metrics/metric"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

// TestMetricsPage compares the tables of docs/reference/metrics.md with what is registered; -update writes them.
func TestMetricsPage(t *testing.T) {
	const page, start, end = "../../docs/reference/metrics.md", "<!-- %s: written by make docs -->\n", "<!-- end -->\n"
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	o := quotaOptions(t, "")
	o.Rules, o.AllowEmptyRules, o.XDS.Server, o.XDS.NodeID = []string{"xds"}, true, "127.0.0.1:1", "weir"
	o.Log = slog.New(slog.DiscardHandler)
	o.LogQueue = logging.NewQueue(func([]byte) error { return nil }, func(logging.QueueStats) {})
	a, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	all := a.metrics.Describe()
	o.LogQueue.Close(patience)
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	want := string(data)
	for what, prefix := range map[string]string{"metrics": "weir_", "classic": "ratelimit_"} {
		start := fmt.Sprintf(start, what)
		before, rest, found := strings.Cut(want, start)
		_, after, ended := strings.Cut(rest, end)
		if !found || !ended {
			t.Fatalf("%s has no %q with %q after it", page, start, end)
		}
		want = before + start + table(t, all, prefix) + end + after
	}
	for _, o := range decide.Outcomes() {
		if !strings.Contains(want, "`"+o.String()+"`") {
			t.Errorf("%s does not say what %s is", page, o)
		}
	}
	if *casetest.Update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if diff := cmp.Diff(want, string(data)); diff != "" {
		t.Errorf("%s: -want +got (make docs writes it)\n%s", page, diff)
	}
}

// table describes the metrics whose names begin with the prefix. It names only the type of a histogram, because the
// page says which names are counters and which are gauges.
func table(t *testing.T, all []metric.Description, prefix string) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("| metric | labels | meaning |\n|---|---|---|\n")
	for _, d := range all {
		if !strings.HasPrefix(d.Name, prefix) {
			continue
		}
		labels := slices.Sorted(slices.Values(d.Labels))
		for i := range labels {
			labels[i] = "`" + labels[i] + "`"
		}
		help, counts := d.Help, strings.HasSuffix(d.Name, "_total") || prefix == "ratelimit_"
		if d.Type == "histogram" {
			help = "Histogram: " + help
		} else if counts != (d.Type == "counter") {
			t.Errorf("%s is a %s: its name says otherwise", d.Name, d.Type)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", d.Name, strings.Join(labels, ", "), help)
	}
	return b.String()
}
