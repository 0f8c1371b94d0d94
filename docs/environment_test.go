package docs

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/cli/ratelimitenv"
)

// TestEnvironmentTable compares the variables and defaults of the page with those in code.
func TestEnvironmentTable(t *testing.T) {
	data, err := os.ReadFile("migrating/envoyproxy-ratelimit.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(data), "| variable | default | | |\n|---|---|---|---|\n")
	var got, want []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\| (?:`(.*?)`)? \\|").FindAllStringSubmatch(table, -1) {
		got = append(got, fmt.Sprintf("%s=%s", row[1], row[2]))
	}
	for _, v := range ratelimitenv.Variables() {
		want = append(want, fmt.Sprintf("%s=%s", v.Name, v.Default))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-code +page\n%s", diff)
	}
}
