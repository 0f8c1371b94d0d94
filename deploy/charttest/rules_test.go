package charttest

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/test/podtest"
)

// The example rules limit what the Envoy of deploy/kubernetes asks.
func TestExampleRules(t *testing.T) {
	text, _, err := render(t, "weir", "{}")
	if err != nil {
		t.Fatal(err)
	}
	data, _ := podtest.At(parse(t, text)["ConfigMap/weir-rules"], "data").(object)
	set := compile(t, data)
	address := descriptors.Entry{Key: "remote_address", Value: "192.0.2.7"}
	login := []descriptors.Entry{{Key: "path", Value: "/login"}, address}
	for _, entries := range [][]descriptors.Entry{{address}, login} {
		if rule := set.Domain("shop").Match(entries); rule == nil || len(rule.Limits) != 1 {
			t.Errorf("%v: rule %v, want one with a limit", entries, rule)
		}
	}
	if got := set.Domain("shop").Match(login).Limits[0].OnStoreFailure; got != descriptors.Deny {
		t.Errorf("without its store a login is decided by %v, want deny", got)
	}
	files, err := filepath.Glob("../kustomize/base/rules/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no rules of the kustomization: %v", err)
	}
	base := object{}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		base[filepath.Base(path)] = string(text)
	}
	compile(t, base)
}

func compile(t *testing.T, data object) *descriptors.Set {
	t.Helper()
	var files []rulefile.File
	for _, name := range slices.Sorted(maps.Keys(data)) {
		text, _ := data[name].(string)
		files = append(files, rulefile.File{Name: name, Data: []byte(text)})
	}
	set, err := rulefile.Compile(files)
	if err != nil {
		t.Fatal(err)
	}
	return set
}
