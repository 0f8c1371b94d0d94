package app

import (
	"flag"
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
)

var update = flag.Bool("update", false, "write the tables of docs/reference/metrics.md")

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
		want = before + start + table(all, prefix) + end + after
	}
	for _, o := range decide.Outcomes() {
		if !strings.Contains(want, "`"+o.String()+"`") {
			t.Errorf("%s does not say what %s is", page, o)
		}
	}
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if diff := cmp.Diff(want, string(data)); diff != "" {
		t.Errorf("%s: -want +got (make docs writes it)\n%s", page, diff)
	}
}

// table describes the metrics whose names begin with the prefix.
func table(all []metric.Description, prefix string) string {
	var b strings.Builder
	b.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, d := range all {
		if !strings.HasPrefix(d.Name, prefix) {
			continue
		}
		labels := slices.Sorted(slices.Values(d.Labels))
		for i := range labels {
			labels[i] = "`" + labels[i] + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Name, d.Type, strings.Join(labels, ", "), d.Help)
	}
	return b.String()
}
