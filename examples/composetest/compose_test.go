//go:build e2e

// Package composetest starts examples/docker-compose.yml, and what users of envoyproxy/ratelimit have. make
// long runs it.
package composetest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

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

// What TestContainers does not see, since it has no images of Prometheus and Grafana and its containers could write
// less: both come only when they are asked for, and find Weir, the alerts and the dashboard; mounts are read-only, and
// other machines reach Envoy alone.
func TestWatching(t *testing.T) {
	var project struct {
		Services map[string]struct {
			Profiles, Ports []string
			Volumes         []struct {
				Source, Target string
				ReadOnly       bool `yaml:"read_only"`
			}
		}
		Configs map[string]struct{ Content string }
	}
	if err := yaml.Unmarshal([]byte(read(t, "../docker-compose.yml")), &project); err != nil {
		t.Fatal(err)
	}
	for name, service := range project.Services {
		isWatching := name == "prometheus" || name == "grafana"
		if isWatching != slices.Equal(service.Profiles, []string{"watch"}) {
			t.Errorf("%s has the profiles %q", name, service.Profiles)
		}
		for _, v := range service.Volumes {
			if !v.ReadOnly {
				t.Errorf("%s can write to %s", name, v.Source)
			}
		}
		for _, port := range service.Ports {
			if port != "10000:10000" && !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s publishes %s to other machines", name, port)
			}
		}
	}
	if !strings.Contains(read(t, "../../Dockerfile"), "\nUSER 65534:65534\n") {
		t.Error("the image does not run as nobody")
	}
	for _, tt := range []struct{ config, pattern, wants string }{
		{"prometheus", `targets: \["(.*)"\]`, "envoy:8080"}, // whose network is the sidecar's
		{"prometheus", `rule_files: \[(.*)\]`, "/weir/alerts.yaml"},
		{"grafana_datasource", `url: "(.*)"`, "http://prometheus:9090"},
		{"grafana_dashboards", `path: ([^}]+)}}`, "/weir"},
	} {
		if got := submatches(tt.pattern, project.Configs[tt.config].Content); !slices.Equal(got, []string{tt.wants}) {
			t.Errorf("%s: %q, want %s", tt.config, got, tt.wants)
		}
	}
	for _, path := range []string{"prometheus/alerts.yaml", "grafana/weir.json"} {
		name := filepath.Dir(path)
		if volumes := project.Services[name].Volumes; len(volumes) != 1 || volumes[0].Target != "/weir" {
			t.Errorf("%s: mounts %+v, want one at /weir", name, volumes)
		} else if _, err := os.Stat(filepath.Join("..", volumes[0].Source, filepath.Base(path))); err != nil {
			t.Error(err)
		}
	}
}
