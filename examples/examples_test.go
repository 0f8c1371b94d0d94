// Package examples checks that the examples fit each other; `make demo` shows them at work.
package examples

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
)

func compile(t *testing.T) *descriptors.Set {
	t.Helper()
	paths, err := filepath.Glob("rules/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no rules: %v", err)
	}
	var files []rulefile.File
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, rulefile.File{Name: path, Data: data})
	}
	set, err := rulefile.Compile(files)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// What envoy.yaml asks is what the rules know.
func TestRulesAreForWhatEnvoyAsks(t *testing.T) {
	envoy, err := os.ReadFile("envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	set := compile(t)
	for _, d := range set.Domains() {
		if !strings.Contains(string(envoy), " domain: "+d.Name()+"\n") {
			t.Errorf("no filter in envoy.yaml asks the domain %s", d.Name())
		}
	}
	address := descriptors.Entry{Key: "remote_address", Value: "192.0.2.7"}
	for _, tt := range []struct {
		action  string // as envoy.yaml has it
		entries []descriptors.Entry
		rule    string
		limits  int
	}{
		{"actions: [{remote_address: {}}]", []descriptors.Entry{address}, "remote_address", 1},
		{
			"generic_key: {descriptor_key: path, descriptor_value: /login}",
			[]descriptors.Entry{{Key: "path", Value: "/login"}, address},
			"path=/login > remote_address", 1,
		},
		{"descriptor_key: api_key}", []descriptors.Entry{{Key: "api_key", Value: "alice"}}, "api_key", 2},
		{
			"descriptor_key: api_key}",
			[]descriptors.Entry{{Key: "api_key", Value: "internal-billing"}},
			"api_key=internal-*",
			0,
		},
	} {
		if !strings.Contains(string(envoy), tt.action) {
			t.Errorf("envoy.yaml has no %s", tt.action)
		}
		rule := set.Domain("shop").Match(tt.entries)
		if rule == nil {
			t.Errorf("no rule for %v", tt.entries)
		} else if rule.Path != tt.rule || len(rule.Limits) != tt.limits {
			t.Errorf("%v: rule %q with %d limits, want %q with %d", tt.entries, rule.Path, len(rule.Limits), tt.rule, tt.limits)
		}
	}
}
