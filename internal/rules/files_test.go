package rules_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/rules"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// A rule file is parsed for the values files that it names once, and again when it has changed.
func TestIncludesAreRemembered(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pieces := 0 // of work in the last read
	rest := func() error { pieces++; return nil }
	source := rules.SourceFor(descriptors.Process{Rest: rest}, reload.Files{Paths: []string{dir}})
	read := func() (names []string) {
		t.Helper()
		pieces = 0
		snapshot, err := source.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range snapshot.Files {
			if f.Included {
				names = append(names, filepath.Base(f.Name))
			}
		}
		return names
	}
	rules := func(file string) string {
		return "domain: d\ndescriptors:\n  - key: a\n    values_file: " + file + "\n"
	}
	write("a.txt", "1\n")
	write("b.txt", "2\n")
	write("rules.yaml", rules("a.txt"))
	write("other.yaml", "domain: other\ndescriptors: [{key: none}]\n")
	if diff := cmp.Diff([]string{"a.txt"}, read()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	parsing := pieces
	if diff := cmp.Diff([]string{"a.txt"}, read()); diff != "" || pieces > 0 || parsing == 0 {
		t.Errorf("the same files were parsed again (%d, then %d pieces of work), or gave other names: %s", parsing, pieces,
			diff)
	}
	write("rules.yaml", rules("b.txt"))
	if diff := cmp.Diff([]string{"b.txt"}, read()); diff != "" {
		t.Errorf("after a change: -want +got\n%s", diff)
	}
	write("rules.yaml", rules("a.txt"))
	if diff := cmp.Diff([]string{"a.txt"}, read()); diff != "" {
		t.Errorf("back again: -want +got\n%s", diff)
	}
}

func TestDescriptors(t *testing.T) {
	got := rules.Descriptors([]reload.File{{Name: "a", Data: []byte("b"), Included: true}})
	if diff := cmp.Diff([]rulefile.File{{Name: "a", Data: []byte("b"), Included: true}}, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}
