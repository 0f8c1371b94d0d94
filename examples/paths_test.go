package examples

import (
	"path/filepath"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"
)

// manager is what of an Envoy's connection manager decides which path a request has.
type manager struct {
	StatPrefix     string `yaml:"stat_prefix"`
	NormalizePath  bool   `yaml:"normalize_path"`
	MergeSlashes   bool   `yaml:"merge_slashes"`
	EscapedSlashes string `yaml:"path_with_escaped_slashes_action"`
}

// Every Envoy that faces clients limits the path that it forwards: a client cannot spell it in another way.
func TestEnvoyNormalizesPaths(t *testing.T) {
	starters, err := filepath.Glob("starter/*/envoy.yaml")
	if err != nil || len(starters) == 0 {
		t.Fatalf("no starter: %v", err)
	}
	for _, path := range append(starters, "envoy.yaml") {
		var config struct {
			Resources struct {
				Listeners []struct {
					Name   string
					Chains []struct {
						Filters []struct {
							Config manager `yaml:"typed_config"`
						}
					} `yaml:"filter_chains"`
				}
			} `yaml:"static_resources"`
		}
		if err := yaml.Unmarshal(read(t, path), &config); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		var managers []manager
		for _, l := range config.Resources.Listeners {
			if l.Name == "front" {
				managers = append(managers, l.Chains[0].Filters[0].Config)
			}
		}
		if want := []manager{{"front", true, true, "UNESCAPE_AND_REDIRECT"}}; !slices.Equal(managers, want) {
			t.Errorf("%s: %+v, want %+v", path, managers, want)
		}
	}
}
