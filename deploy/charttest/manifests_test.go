package charttest

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// update, set by make manifests, writes the files that these tests compare.
var update = flag.Bool("update", false, "write deploy/kubernetes and the chart's copies of examples")

// headers are what the plain manifests begin with.
var headers = map[string]string{
	"weir.yaml": `# One Weir for all Envoys of a cluster, with its counters in memory.
#
#   kubectl apply -f weir.yaml
#
# docs/start/kubernetes.md has the steps, and an Envoy that asks it. For several replicas: weir-redis.yaml.
`,
	"weir-redis.yaml": `# Two Weirs that share each limit through a Redis, for all Envoys of a cluster.
#
#   kubectl create secret generic weir-redis --from-literal=url=redis://:PASSWORD@redis:6379/0
#   kubectl create secret generic weir-token --from-literal=token=$(openssl rand -hex 32)
#   kubectl apply -f weir-redis.yaml
#
# docs/start/kubernetes.md has the steps, and an Envoy that asks it.
`,
}

// helmOnly are lines that say something only where Helm installs: its labels, the release's namespace.
var helmOnly = regexp.MustCompile(`(?m)^ +(helm\.sh/chart: .*|app\.kubernetes\.io/managed-by: .*|namespace: default)\n|^# Source: .*\n`)

// The plain manifests are what the chart makes of the values in testdata/manifests.
func TestPlainManifests(t *testing.T) {
	for name, header := range headers {
		values, err := os.ReadFile(filepath.Join("testdata/manifests", name))
		if err != nil {
			t.Fatal(err)
		}
		text, _, err := render(t, "weir", string(values))
		if err != nil {
			t.Fatal(err)
		}
		spec, container := pod(t, parse(t, text))
		for _, problem := range argumentProblems(t, spec, container) {
			t.Errorf("%s: %s", name, problem)
		}
		text = header + "# Made from deploy/helm/weir by make manifests.\n\n" + strings.TrimPrefix(helmOnly.ReplaceAllString(text, ""), "---\n")
		inStep(t, filepath.Join("../kubernetes", name), text)
	}
}

// The chart has copies of the alerts and the dashboard, since a chart contains all of its files.
func TestCopies(t *testing.T) {
	for from, to := range map[string]string{
		"../../examples/prometheus/alerts.yaml": "files/alerts.yaml",
		"../../examples/grafana/weir.json":      "files/dashboard.json",
	} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		inStep(t, filepath.Join(chartDir, to), string(text))
	}
}

// inStep checks that the file has the text, or writes it with -update.
func inStep(t *testing.T, path, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) == want {
		return
	}
	has, wants := strings.Split(string(got), "\n"), strings.Split(want, "\n")
	for i := range min(len(has), len(wants)) {
		if has[i] != wants[i] {
			t.Errorf("%s:%d has %q, want %q: run make manifests", path, i+1, has[i], wants[i])
			return
		}
	}
	t.Errorf("%s has %d lines, want %d: run make manifests", path, len(has), len(wants))
}
