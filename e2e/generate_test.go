//go:build e2e

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// TestGeneratedLimits sends the requests of testdata/generate through an Envoy with the filters that weir generate
// istio has written. The names in x-ratelimit-limit show which limits counted.
func TestGeneratedLimits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if out, err := proctest.RunWeir(t, "generate", "istio", "testdata/generate/limits.yaml", "--output", dir); err != nil {
		t.Fatal(err, out)
	}
	rules := readObject(t, filepath.Join(dir, "weir-istio-rules.yaml")).Data["weir-istio-rules.yaml"]
	var filters []any
	for _, name := range []string{"istio-system_ingressgateway", "shop_shop"} {
		o := readObject(t, filepath.Join(dir, "envoyfilter-"+name+".yaml"))
		filters = append(filters, o.Spec.ConfigPatches[0].Patch.Value)
	}
	filters = append(filters, map[string]any{"name": "envoy.filters.http.router", "typed_config": map[string]any{
		"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
	}})
	text, err := json.Marshal(filters)
	if err != nil {
		t.Fatal(err)
	}
	// Envoy waits longer, and a failed call is no pass.
	config := strings.NewReplacer("outbound|8081||weir.weir-system.svc.cluster.local", "weir", `"0.02s"`, `"2s"`,
		`"failure_mode_deny":false`, `"failure_mode_deny":true`).Replace(string(text))
	s := startWeir(t, ruleFile(t, rules))
	front := proxy{Weir: []string{s.GRPC}, Filters: config}.start(t).Listener("front")

	requests, err := os.ReadFile("testdata/generate/requests.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(requests)) {
		request, want, ok := strings.Cut(strings.TrimSpace(line), " = ")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(strings.ReplaceAll(request, `\xff`, "\xff"))
		head := append([]string{f[1] + " " + f[2] + " HTTP/1.1", "Host: " + f[3]}, f[4:]...)
		status, header := sendRaw(t, front, f[0], strings.Join(head, "\r\n"))
		var limits []string
		for _, name := range limitName.FindAllStringSubmatch(strings.Join(header.Values("X-Ratelimit-Limit"), ","), -1) {
			limits = append(limits, name[1])
		}
		slices.Sort(limits)
		if got := strings.Join(append([]string{strconv.Itoa(status)}, limits...), " "); got != want {
			t.Errorf("%s: %s, want %s", request, got, want)
		}
	}
}

var limitName = regexp.MustCompile(`name="[^"]*/([^"/]+)"`)

// generated has the fields of a generated object that the test reads.
type generated struct {
	Data map[string]string
	Spec struct {
		ConfigPatches []struct{ Patch struct{ Value any } } `yaml:"configPatches"`
	}
}

func readObject(t *testing.T, path string) (o generated) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = yaml.Unmarshal(text, &o)
	}
	if err != nil {
		t.Fatal(err)
	}
	return o
}
