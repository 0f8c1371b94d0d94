package cli

import (
	"os"
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
