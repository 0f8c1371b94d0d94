package cli

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

// TestTroubleshooting runs the commands of the page, lines "$ weir ..." in blocks of console, and compares what they
// say with what is below them.
func TestTroubleshooting(t *testing.T) {
	t.Chdir("../..")
	const page = "docs/operate/troubleshooting.md"
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	commands := 0
	got := regexp.MustCompile("(?ms)^```console\n.*?^```$").ReplaceAllStringFunc(string(data), func(block string) string {
		var b strings.Builder
		b.WriteString("```console\n")
		for line := range strings.Lines(block) {
			command, ok := strings.CutPrefix(line, "$ weir ")
			if !ok {
				continue
			}
			b.WriteString(line)
			if code := run(t.Context(), strings.Fields(command), &b, &b); code == exitUsage {
				t.Errorf("weir %sends with exit code %d", command, code)
			}
			commands++
		}
		return b.String() + "```"
	})
	if commands < 2 {
		t.Errorf("found %d commands: this test no longer finds them", commands)
	}
	if *casetest.Update {
		if err := os.WriteFile(page, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(string(data), got); diff != "" && !*casetest.Update {
		t.Errorf("-want +got (go test ./internal/cli -run Troubleshooting -update writes it)\n%s", diff)
	}
}

// ruleBlock matches a block of a page that is a rule file, or a file that rules include.
var ruleBlock = regexp.MustCompile("(?ms)^```\\w+ title=\"(rules/[^\":]+)\"\n(.*?)^```$")

// TestTasks runs the tests in docs/tasks/testdata with the rules of the pages of docs/tasks: PAGE.test.yaml with the
// page's first rules, and PAGE-2.test.yaml after the page has changed a file. A name may go on before .test.yaml.
func TestTasks(t *testing.T) {
	t.Chdir("../../docs/tasks")
	files, err := filepath.Glob("testdata/*.test.yaml")
	pages, err2 := filepath.Glob("*.md")
	if err = errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		dir, name := t.TempDir(), strings.TrimSuffix(page, ".md")
		blocks := ruleBlock.FindAllSubmatch(text, -1)
		for i, block := range blocks {
			write(t, filepath.Join(dir, string(block[1])), block[2])
			if i+1 < len(blocks) && string(blocks[i+1][1]) != string(block[1]) {
				continue // the page writes its rules into several files
			}
			tests, err := filepath.Glob("testdata/" + name + ".*test.yaml")
			if err != nil || len(tests) == 0 {
				t.Errorf("%s: there is no testdata/%s.test.yaml for its rules", page, name)
			}
			for _, file := range tests {
				test, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				path := filepath.Join(dir, filepath.Base(file))
				write(t, path, test)
				if code := run(t.Context(), []string{"test", path}, t.Output(), t.Output()); code != exitOK {
					t.Errorf("weir test %s with the rules of %s ends with exit code %d", file, page, code)
				}
				ran++
			}
			name += "-2"
		}
	}
	if ran != len(files) {
		t.Errorf("of %d files of tests, %d were run: the others belong to no page", len(files), ran)
	}
}

// write writes a file, and the directories above it.
func write(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, text, 0o600)); err != nil {
		t.Fatal(err)
	}
}
