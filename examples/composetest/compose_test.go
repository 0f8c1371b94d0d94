// Package composetest checks examples/docker-compose.yml with Compose's own loader. It is a module of its own, so
// that Weir does not depend on that loader.
package composetest

import (
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

func load(t *testing.T, profiles ...string) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{"../docker-compose.yml"}, cli.WithName("weir"),
		cli.WithProfiles(profiles))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return project
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// submatches are the first groups of all matches of the pattern in the text.
func submatches(pattern, text string) []string {
	var found []string
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		found = append(found, m[1])
	}
	return found
}

func TestMountsAreThereAndReadOnly(t *testing.T) {
	mounts := 0
	for _, service := range load(t, "watch").Services {
		for _, v := range service.Volumes {
			mounts++
			if _, err := os.Stat(v.Source); err != nil {
				t.Errorf("%s mounts a path that is not there: %v", service.Name, err)
			}
			if !v.ReadOnly {
				t.Errorf("%s can write to %s", service.Name, v.Source)
			}
		}
	}
	if mounts != 4 {
		t.Errorf("%d mounts, want Envoy's configuration, the rules, the alerts and the dashboard", mounts)
	}
}

// Prometheus and Grafana come only when they are asked for, and find the sidecar, the alerts and the dashboard.
func TestWatching(t *testing.T) {
	for name := range load(t).Services {
		if name == "prometheus" || name == "grafana" {
			t.Errorf("%s starts unasked", name)
		}
	}
	project := load(t, "watch")
	for _, tt := range []struct{ config, pattern, wants string }{
		{"prometheus", `targets: \["(.*)"\]`, "envoy:8080"}, // whose network is the sidecar's, see TestPortsMeet
		{"prometheus", `rule_files: \[(.*)\]`, "/weir/alerts.yaml"},
		{"grafana_datasource", `url: "(.*)"`, "http://prometheus:9090"},
		{"grafana_dashboards", `path: ([^}]+)}}`, "/weir"},
	} {
		if got := submatches(tt.pattern, project.Configs[tt.config].Content); !slices.Equal(got, []string{tt.wants}) {
			t.Errorf("%s: %q, want %s", tt.config, got, tt.wants)
		}
	}
	for _, path := range []string{"../prometheus/alerts.yaml", "../grafana/weir.json"} {
		service := project.Services[filepath.Base(filepath.Dir(path))]
		if len(service.Volumes) != 1 || service.Volumes[0].Target != "/weir" {
			t.Errorf("%s: mounts %+v, want one at /weir", service.Name, service.Volumes)
		} else if _, err := os.Stat(filepath.Join(service.Volumes[0].Source, filepath.Base(path))); err != nil {
			t.Error(err)
		}
	}
}

func TestSidecarIsBuiltFromTheDockerfile(t *testing.T) {
	build := load(t).Services["weir"].Build
	if build == nil {
		t.Fatal("the sidecar is not built")
	}
	dockerfile := read(t, filepath.Join(build.Context, build.Dockerfile))
	stages := submatches(`(?m)^FROM \S+ AS (\S+)$`, dockerfile)
	if !slices.Contains(stages, build.Target) {
		t.Errorf("target %q is none of the Dockerfile's stages %q", build.Target, stages)
	}
	for _, from := range submatches(`COPY --from=(\S+)`, dockerfile) {
		if !slices.Contains(stages, from) {
			t.Errorf("COPY --from=%s: the stages are %q", from, stages)
		}
	}
	checkContext(t, build.Context)
	for _, line := range []string{"RUN CGO_ENABLED=0 ", " -trimpath ", "USER 65534:65534"} {
		if !strings.Contains(dockerfile, line) {
			t.Errorf("the Dockerfile has no %q", line)
		}
	}
}

// checkContext checks that .dockerignore lets every package of the module that the sidecar imports into the build.
func checkContext(t *testing.T, dir string) {
	t.Helper()
	packages := command(t, "go", "-C", dir, "list", "-deps", "-f",
		`{{with .Module}}{{if .Main}}{{$.ImportPath}}{{end}}{{end}}`, "./cmd/sidecar")
	module := strings.TrimSpace(command(t, "go", "-C", dir, "list", "-m"))
	allowed := submatches(`(?m)^!(.*)$`, read(t, filepath.Join(dir, ".dockerignore")))
	for _, path := range allowed {
		if _, err := os.Stat(filepath.Join(dir, path)); err != nil {
			t.Errorf(".dockerignore names a path that is not there: %v", err)
		}
	}
	for _, path := range append(strings.Fields(packages), module+"/go.mod", module+"/go.sum") {
		path = strings.TrimPrefix(path, module+"/")
		if !slices.ContainsFunc(allowed, func(a string) bool { return path == a || strings.HasPrefix(path, a+"/") }) {
			t.Errorf("the sidecar needs %s, which .dockerignore leaves out", path)
		}
	}
}

func TestPortsMeet(t *testing.T) {
	project := load(t)
	envoy, sidecar := project.Services["envoy"], project.Services["weir"]
	if sidecar.NetworkMode != "service:envoy" {
		t.Fatalf("network_mode %q: envoy.yaml looks for the sidecar on 127.0.0.1", sidecar.NetworkMode)
	}
	for _, port := range envoy.Ports {
		if port.Target == 8080 && port.HostIP != "127.0.0.1" {
			t.Errorf("the sidecar's HTTP is published to %q, want 127.0.0.1 alone", port.HostIP)
		}
	}
	exposed := strings.Fields(submatches(`(?m)^EXPOSE (.*)$`,
		read(t, filepath.Join(sidecar.Build.Context, "Dockerfile")))[0])
	config := read(t, "../envoy.yaml")
	listens := submatches(`address: 0\.0\.0\.0, port_value: (\d+)`, config)
	weir := submatches(`(?s)cluster_name: weir\n.*?port_value: (\d+)`, config)
	if len(weir) == 0 || !slices.Contains(exposed, weir[0]) {
		t.Errorf("Envoy's cluster for the sidecar is on %q, the image listens on %q", weir, exposed)
	}
	for _, p := range envoy.Ports {
		port := submatches(`^(\d+)$`, p.Published)[0]
		if !slices.Contains(slices.Concat(listens, exposed), port) {
			t.Errorf("port %s is published, but Envoy listens on %q and the sidecar on %q", port, listens, exposed)
		}
	}
}

// The commands in the file's comments name ports that it publishes.
func TestPortsInComments(t *testing.T) {
	var published []string
	for _, service := range load(t, "watch").Services {
		for _, p := range service.Ports {
			published = append(published, p.Published)
		}
	}
	ports := submatches(`(?m)#.*?localhost:([^/) ]+)`, read(t, "../docker-compose.yml"))
	if len(ports) == 0 {
		t.Error("no comment says where to send a request")
	}
	for _, port := range ports {
		if !slices.Contains(published, port) {
			t.Errorf("a comment says localhost:%s, the ports are %q", port, published)
		}
	}
}

func TestSidecarsArguments(t *testing.T) {
	project := load(t)
	sidecar := project.Services["weir"]
	argument := func(flag string) string {
		i := slices.Index(sidecar.Command, flag)
		if i < 0 || i+1 == len(sidecar.Command) {
			t.Fatalf("the sidecar's command %q has no %s", sidecar.Command, flag)
		}
		return sidecar.Command[i+1]
	}
	rules := argument("--rules")
	if !slices.ContainsFunc(sidecar.Volumes, func(v types.ServiceVolumeConfig) bool { return v.Target == rules }) {
		t.Errorf("--rules %s is no mount", rules)
	}
	store, err := url.Parse(argument("--store"))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := project.Services[store.Hostname()]; !ok || store.Scheme != "redis" {
		t.Errorf("--store %s names no service", store)
	}
	if _, ok := sidecar.DependsOn[store.Hostname()]; !ok {
		t.Errorf("the sidecar does not wait for %s", store.Hostname())
	}
}
