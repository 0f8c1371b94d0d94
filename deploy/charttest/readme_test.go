package charttest

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The table of the chart's README has each value with its default, and no other one.
func TestReadmeValues(t *testing.T) {
	var values object
	if err := yaml.Unmarshal([]byte(readFile(t, filepath.Join(chartDir, "values.yaml"))), &values); err != nil {
		t.Fatal(err)
	}
	readme := readFile(t, filepath.Join(chartDir, "README.md"))
	rows := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([A-Za-z.]+)` \\| (.*?) \\| (.+) \\|$").FindAllStringSubmatch(readme, -1) {
		if rows[m[1]] != "" {
			t.Errorf("README.md has %s twice", m[1])
		}
		rows[m[1]] = m[2]
	}
	if len(rows) < 50 {
		t.Fatalf("README.md has %d values: the pattern no longer finds them", len(rows))
	}
	var check func(path string, value any)
	check = func(path string, value any) {
		shown, ok := rows[path]
		delete(rows, path)
		children, _ := value.(object)
		switch {
		case ok && shown == "see values.yaml":
		case ok && shown != "`"+show(t, value)+"`":
			t.Errorf("README.md says that %s is %s, values.yaml that it is %s", path, shown, show(t, value))
		case !ok && len(children) == 0:
			t.Errorf("README.md has no %s", path)
		case !ok:
			for _, name := range slices.Sorted(maps.Keys(children)) {
				check(path+"."+name, children[name])
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		check(name, values[name])
	}
	for path := range rows {
		t.Errorf("README.md has %s, values.yaml has not", path)
	}
}

// Registries of charts show the README without the repository around it.
func TestReadmeLinks(t *testing.T) {
	text := readFile(t, filepath.Join(chartDir, "README.md"))
	links := regexp.MustCompile(`\]\(([^)]*)\)`).FindAllStringSubmatch(text, -1)
	if len(links) < 5 {
		t.Errorf("README.md has %d links: the pattern no longer finds them", len(links))
	}
	for _, m := range links {
		if !strings.HasPrefix(m[1], "https://") && !strings.HasPrefix(m[1], "#") {
			t.Errorf("README.md: %s leads nowhere outside the repository; begin it with https://", m[1])
		}
	}
}

// show is a default as the table has it.
func show(t *testing.T, value any) string {
	t.Helper()
	if text, ok := value.(string); ok && text != "" {
		return text
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(b.String())
}

// The YAML blocks of the README are values that the chart takes. That it has no relative links: TestReadmeLinks.
func TestReadmeExamples(t *testing.T) {
	readme := readFile(t, filepath.Join(chartDir, "README.md"))
	blocks := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(readme, -1)
	if len(blocks) < 3 {
		t.Errorf("found %d YAML blocks", len(blocks))
	}
	for _, m := range blocks {
		text, _, err := render(t, "weir", m[1])
		if err != nil {
			t.Errorf("%v:\n%s", err, m[1])
			continue
		}
		_, container := pod(t, parse(t, text))
		if problems := problemsOf(t, container); problems != "" {
			t.Error(problems)
		}
	}
}

// The values of docs/start/ai-gateway.md make the Deployment whose rollout the page awaits.
func TestAIGatewayPage(t *testing.T) {
	page := readFile(t, "../../docs/start/ai-gateway.md")
	values := regexp.MustCompile("(?ms)^```yaml title=\"quota.yaml\"\n(.*?)^```$").FindStringSubmatch(page)
	waits := regexp.MustCompile("rollout status deployment/(.*)\n").FindStringSubmatch(page)
	if values == nil || waits == nil {
		t.Fatal("the page has no values or awaits no Deployment")
	}
	text, _, err := render(t, "quota", values[1])
	if err != nil {
		t.Fatal(err)
	}
	objects := parse(t, text)
	if objects["Deployment/"+waits[1]] == nil {
		t.Errorf("no Deployment %s in\n%s", waits[1], text)
	}
	spec, container := pod(t, objects)
	for _, problem := range argumentProblems(t, spec, container) {
		t.Error(problem)
	}
}

// Chart.yaml and the image of the plain manifests have the same version.
func TestVersions(t *testing.T) {
	c := load(t)
	if c.Metadata.Version != c.Metadata.AppVersion {
		t.Errorf("version %s, appVersion %s: they are released together", c.Metadata.Version, c.Metadata.AppVersion)
	}
	manifest := readFile(t, "../kubernetes/weir.yaml")
	if want := c.Metadata.AppVersion; !strings.Contains(manifest, "ghcr.io/weir-ratelimit/weir:"+want) {
		t.Errorf("deploy/kubernetes/weir.yaml does not run version %s", want)
	}
}
