package rules_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/rules"
)

// Files that have rules in them, and are not read because of their names, are warned of; others beside the rules are
// not.
func TestNotRead(t *testing.T) {
	t.Chdir(t.TempDir())
	const yaml, json = "domain: a\ndescriptors: [{key: a}]\n", `{"domain": "a", "x": 1, "descriptors": [{"key": "a"}]}`
	if err := os.MkdirAll("rules/sub", 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"good.yaml": yaml, "also.yml": yaml, "config.json": json, "rules.yaml.txt": yaml, "plain": yaml,
		"sub/UPPER.YAML": yaml,
		".hidden":        yaml, "old.yaml.bak": yaml, "old.yaml~": yaml, "README.md": yaml, "list.txt": "domain\ndescriptors\n",
		"other.json": `{"domain": "a"}`, "empty": "",
	} {
		if err := os.WriteFile(filepath.Join("rules", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("plain", "rules/link"); err != nil {
		t.Fatal(err)
	}
	const why = ":1:1: this file looks like rules, but is not read, because of its name; rename it to "
	const or = ", or move it out of the rules' folder"
	want := "rules/config.json" + why + "config.yaml" + or + "\n" +
		"rules/link" + why + "link.yaml" + or + "\n" +
		"rules/plain" + why + "plain.yaml" + or + "\n" +
		"rules/rules.yaml.txt" + why + "rules.yaml" + or + "\n" +
		"rules/sub/UPPER.YAML" + why + "UPPER.yaml" + or
	if diff := cmp.Diff(want, rules.NotRead(t.Context(), "rules").Error()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if got := rules.NotRead(t.Context(), "rules/plain", "rules/config.json"); got != nil {
		t.Errorf("files that are given themselves are read, but %v", got)
	}
	if got := rules.NotRead(t.Context(), "nothing"); got != nil {
		t.Errorf("of nothing: %v", got)
	}
}
