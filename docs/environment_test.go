package docs

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/ratelimitenv"
)

var update = flag.Bool("update", false, "write the table of migrating.md")

// TestEnvironmentTable compares the table of variables with the one in code.
func TestEnvironmentTable(t *testing.T) {
	const page, begin, end = "migrating/envoyproxy-ratelimit.md", "| variable | default | | |\n|---|---|---|---|\n", "<!-- end of the table -->"
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(data), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("the page has no table")
	}
	var rows strings.Builder
	for _, v := range ratelimitenv.Variables() {
		value := v.Default
		if value != "" {
			value = "`" + value + "`"
		}
		fmt.Fprintf(&rows, "| `%s` | %s | %s | %s |\n", v.Name, value, v.Action, v.How)
	}
	want := before + begin + rows.String() + end + after
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, string(data)); diff != "" {
		t.Errorf("go test ./docs -run TestEnvironmentTable -update writes it; -want +got\n%s", diff)
	}
}
