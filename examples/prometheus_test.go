package examples

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/metrics/metric"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// alertRules is prometheus/alerts.yaml.
type alertRules struct {
	Groups []struct {
		Rules []struct {
			Record, Alert, Expr string
			Labels, Annotations map[string]string
		}
	}
}

// dashboard is what of grafana/weir.json matters here.
type dashboard struct {
	Templating struct {
		List []struct{ Name, Definition string }
	}
	Annotations struct{ List []struct{ Expr string } }
	Panels      []struct {
		ID      int
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ Expr string }
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func alerts(t *testing.T) (rules alertRules) {
	t.Helper()
	if err := yaml.Unmarshal(read(t, "prometheus/alerts.yaml"), &rules); err != nil {
		t.Fatal(err)
	}
	return rules
}

func grafana(t *testing.T) (d dashboard) {
	t.Helper()
	if err := json.Unmarshal(read(t, "grafana/weir.json"), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// metricRow is a line of the tables in docs/reference/metrics.md, which a test writes from what the parts show.
var metricRow = regexp.MustCompile("(?m)^\\| `((?:weir|ratelimit)_\\w+)` \\| ([^|]*) \\| (Histogram: )?")

// documented are Weir's own metrics, and those of the Go runtime and the process that pages and alerts use.
func documented(t *testing.T) []metric.Description {
	t.Helper()
	all := []metric.Description{
		{Name: "go_memstats_heap_alloc_bytes", Type: "gauge"},
		{Name: "go_goroutines", Type: "gauge"},
		{Name: "process_cpu_seconds_total", Type: "counter"},
		{Name: "process_resident_memory_bytes", Type: "gauge"},
		{Name: "process_start_time_seconds", Type: "gauge"},
		{Name: "go_sched_latencies_seconds", Type: "histogram"},
		{Name: "go_gc_duration_seconds", Type: "summary"},
	}
	for _, row := range metricRow.FindAllStringSubmatch(string(read(t, "../docs/reference/metrics.md")), -1) {
		d := metric.Description{Name: row[1], Type: "gauge"}
		switch {
		case row[3] != "":
			d.Type = "histogram"
		case strings.HasSuffix(d.Name, "_total"), strings.HasPrefix(d.Name, "ratelimit_"):
			d.Type = "counter"
		}
		for label := range strings.SplitSeq(strings.ReplaceAll(row[2], "`", ""), ", ") {
			if label != "" {
				d.Labels = append(d.Labels, label)
			}
		}
		all = append(all, d)
	}
	return all
}

// known are the labels of every series that Prometheus has of a sidecar, by name.
func known(t *testing.T) map[string][]string {
	t.Helper()
	all := documented(t)
	scraped := []string{"job", "instance"}
	known := map[string][]string{"up": scraped}
	for _, d := range all {
		labels := append(slices.Clone(scraped), d.Labels...)
		switch d.Type {
		case "histogram":
			known[d.Name+"_bucket"] = append(slices.Clone(labels), "le")
			known[d.Name+"_sum"], known[d.Name+"_count"] = labels, labels
		case "summary":
			known[d.Name] = append(slices.Clone(labels), "quantile")
			known[d.Name+"_sum"], known[d.Name+"_count"] = labels, labels
		default:
			known[d.Name] = labels
		}
	}
	return known
}

var (
	series  = regexp.MustCompile(`\b((?:weir|go|process|ratelimit)_\w+(?::\w+)*|up)\b(?:\{([^}]*)\})?`)
	matcher = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"[^"]*"`)
	groups  = regexp.MustCompile(`\b(?:by|on) \(([^)]*)\)`)
)

// inspect returns the metrics of an expression, and what of their names and labels no sidecar has.
func inspect(expr string, known map[string][]string) (names, wrong []string) {
	var labels []string
	for _, m := range series.FindAllStringSubmatch(groups.ReplaceAllString(expr, ""), -1) {
		name := m[1]
		names = append(names, name)
		has, ok := known[name]
		if !ok {
			wrong = append(wrong, "there is no metric "+name)
		}
		labels = append(labels, has...)
		for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
			if ok && !slices.Contains(has, l[1]) {
				wrong = append(wrong, name+" has no label "+l[1])
			}
		}
	}
	if len(names) == 0 {
		wrong = append(wrong, "no metric in "+expr)
	}
	for _, g := range groups.FindAllStringSubmatch(expr, -1) {
		for l := range strings.SplitSeq(g[1], ",") {
			if l = strings.TrimSpace(l); !slices.Contains(labels, l) {
				wrong = append(wrong, "none of the metrics has the label "+l)
			}
		}
	}
	return names, wrong
}

func check(t *testing.T, what, expr string, known map[string][]string) (names []string) {
	t.Helper()
	names, wrong := inspect(expr, known)
	for _, w := range wrong {
		t.Errorf("%s: %s", what, w)
	}
	return names
}

// withRecorded adds what the rules record.
func withRecorded(rules alertRules, known map[string][]string) map[string][]string {
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if by := groups.FindStringSubmatch(r.Expr); r.Record != "" && by != nil {
				known[r.Record] = strings.Split(by[1], ", ")
			}
		}
	}
	return known
}

func TestAlertsNameWhatThereIs(t *testing.T) {
	rules := alerts(t)
	known := withRecorded(rules, known(t))
	runbook := string(read(t, "../docs/operate/runbook.md"))
	tests := string(read(t, "prometheus/alerts_test.yaml"))
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			check(t, r.Alert+r.Record, r.Expr, known)
			if r.Record != "" {
				continue
			}
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" || r.Labels["severity"] == "" {
				t.Errorf("%s: needs a summary, a description and a severity", r.Alert)
			}
			const docs = "https://github.com/weir-ratelimit/weir/blob/main/docs/operate/runbook.md#"
			if want := docs + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
				t.Errorf("%s: runbook_url %s, want %s", r.Alert, r.Annotations["runbook_url"], want)
			}
			section, _, _ := strings.Cut(after(runbook, "\n## "+r.Alert+"\n"), "\n## ")
			if !strings.Contains(section, "**Means**") {
				t.Errorf("docs/operate/runbook.md has no heading %s with what it means", r.Alert)
			}
			row := fmt.Sprintf("\n| [%s](#%s) | %s | ", r.Alert, strings.ToLower(r.Alert), r.Labels["severity"])
			notice, _, _ := strings.Cut(after(runbook, row), "\n")
			if strings.Count(notice, " |") != 2 { // what users notice, when to silence
				t.Errorf("the table of docs/operate/runbook.md does not have %q", row)
			}
			if !strings.Contains(tests, "alertname: "+r.Alert+"\n        exp_alerts:\n") {
				t.Errorf("alerts_test.yaml never sees %s fire", r.Alert)
			}
		}
	}
}

// after returns what follows the first sep in text, "" if there is none.
func after(text, sep string) string {
	_, rest, _ := strings.Cut(text, sep)
	return rest
}

func TestDashboardNamesWhatThereIs(t *testing.T) {
	d, known := grafana(t), known(t)
	ids, shown := map[int]bool{}, map[string]bool{}
	note := func(what, expr string) {
		for _, name := range check(t, what, expr, known) {
			for _, end := range []string{"_bucket", "_sum", "_count"} {
				name = strings.TrimSuffix(name, end)
			}
			shown[name] = true
		}
	}
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("%s: another panel has the ID %d", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.GridPos.X+p.GridPos.W > 24 || p.GridPos.H == 0 {
			t.Errorf("%s: does not fit: %+v", p.Title, p.GridPos)
		}
		for _, target := range p.Targets {
			note(p.Title, target.Expr)
			if !strings.Contains(target.Expr, `instance=~"$instance"`) {
				t.Errorf("%s: is not of $instance: %s", p.Title, target.Expr)
			}
		}
	}
	for _, a := range d.Annotations.List {
		note("annotation", a.Expr)
	}
	var names []string
	for _, v := range d.Templating.List {
		names = append(names, v.Name)
		if v.Definition != "" {
			check(t, "variable "+v.Name, v.Definition, known)
		}
	}
	for _, want := range []string{"datasource", "instance", "domain", "rule"} {
		if !slices.Contains(names, want) {
			t.Errorf("there is no variable %s", want)
		}
	}
	for _, m := range documented(t) {
		if strings.HasPrefix(m.Name, "weir_") && !shown[m.Name] {
			t.Errorf("no panel shows %s", m.Name)
		}
	}
}

// Every metric that a page of the book names exists. Names that end in _ stand for all that begin so.
func TestPagesNameMetricsThatExist(t *testing.T) {
	known := withRecorded(alerts(t), known(t))
	name := regexp.MustCompile(`\bweir_[a-z_]+\b`)
	entries := []string{decide.StartKey, decide.HintKey}
	found := 0
	err := filepath.WalkDir("../docs", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" || filepath.Base(filepath.Dir(path)) == "adr" {
			return err
		}
		for i, line := range strings.Split(string(read(t, path)), "\n") {
			for _, n := range name.FindAllString(line, -1) {
				found++
				if _, ok := known[n]; !ok && !isFamily(n, known) && !slices.Contains(entries, n) {
					t.Errorf("%s:%d: there is no metric %s", path, i+1, n)
				}
			}
		}
		return nil
	})
	if err != nil || found < 100 {
		t.Errorf("found %d names of metrics in the pages: %v", found, err)
	}
}

// isFamily reports whether a name is that of a histogram, or the beginning of several names.
func isFamily(name string, known map[string][]string) bool {
	if _, ok := known[name+"_bucket"]; ok {
		return true
	}
	for k := range known {
		if strings.HasSuffix(name, "_") && strings.HasPrefix(k, name) {
			return true
		}
	}
	return false
}

// promtool reads the files, and every alert fires when it should and only then.
func TestPromtool(t *testing.T) {
	tool := proctest.Program(t, "promtool")
	for _, args := range [][]string{
		{"check", "rules", "prometheus/alerts.yaml"},
		{"check", "config", "prometheus/prometheus.yaml"},
		{"test", "rules", "prometheus/alerts_test.yaml"},
	} {
		if _, err := os.Stat(args[2]); err != nil { // Go reuses a result while what the test itself looks at is the same
			t.Error(err)
		}
		if out, err := exec.Command(tool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
