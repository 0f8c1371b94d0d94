package rulefile_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
)

const millionValues = "*f, again: *f" // in the rule file that is too slow for some tests

// TestJSONSchema compares the JSON Schema with the reader on the rule files of the golden tests, line by line.
// testdata/not_in_schema.txt has the lines in which only one of them finds an error.
func TestJSONSchema(t *testing.T) {
	var alone strings.Builder
	alone.WriteString("# The reader alone finds errors of YAML, of a text's meaning, of several rules. The schema knows no defaults.\n")
	for _, rules := range ruleFiles(t) {
		files := split(rules)
		var all descriptors.Errors
		_, err := rulefile.Compile(files)
		isValid := !errors.As(err, &all)
		for _, f := range files {
			if f.Included || strings.Contains(rules, millionValues) {
				continue
			}
			found := rulefile.SchemaErrors(f)
			if isValid && len(found) > 0 {
				fmt.Fprintf(&alone, "only the schema: %v\n", found)
			}
			for _, e := range all {
				if e.File == f.Name && found[e.Line] == "" {
					fmt.Fprintln(&alone, e)
				}
			}
		}
	}
	compareFile(t, "testdata/not_in_schema.txt", alone.String())
	compareFile(t, "../../../docs/reference/rules.schema.json", string(rulefile.JSONSchema()))
}

// checkAccepted reports whether the reader accepts a file, which the schema then must accept, too.
func checkAccepted(t rapid.TB, f rulefile.File) bool {
	t.Helper()
	_, err := rulefile.Compile([]rulefile.File{f})
	if found := rulefile.SchemaErrors(f); err == nil && len(found) > 0 {
		t.Errorf("%s: only the schema finds errors: %v\n%s", f.Name, found, f.Data)
	}
	return err == nil
}

// TestJSONSchemaAcceptsExamples: the schema accepts every example, every rule file of weir init, and every block of the
// docs that the reader accepts. Examples and the files of weir init tell an editor where the schema is.
func TestJSONSchemaAcceptsExamples(t *testing.T) {
	first := "# yaml-language-server: $schema=" + rulefile.SchemaURL + "\n"
	block := regexp.MustCompile("(?ms)^```yaml[^\n]*\n(.*?)^```$")
	checked := 0
	for _, pattern := range []string{"examples/rules/*.yaml", "examples/*/*/rules/*.yaml", "docs/*.md", "docs/*/*.md"} {
		paths, _ := filepath.Glob("../../../" + pattern)
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if filepath.Ext(path) == ".yaml" {
				if !bytes.HasPrefix(text, []byte(first)) {
					t.Errorf("%s: its first line is not %s", path, first)
				}
				text = slices.Concat([]byte("```yaml\n"), text, []byte("```"))
			}
			for _, m := range block.FindAllSubmatch(text, -1) {
				if checkAccepted(t, rulefile.File{Name: path, Data: m[1]}) {
					checked++
				}
			}
		}
	}
	if checked < 50 {
		t.Errorf("checked %d files and blocks: the test no longer finds them", checked)
	}
}
