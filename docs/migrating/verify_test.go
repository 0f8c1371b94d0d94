package migrating

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

var (
	verifies = regexp.MustCompile("(?ms)^```sh\n(weir simulate .*?)\n```\n\n```text\n(.*?)```$")
	quoted   = regexp.MustCompile(`'[^']*'|\S+`)
	table    = regexp.MustCompile(`(?m)^  limit  .*\n(  .*\n)+`)
)

// TestVerify runs the command of each page's section Verify: it prints the table that the page shows.
func TestVerify(t *testing.T) {
	weir := proctest.WeirBinary(t)
	pages, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		if page == "index.md" || page == "envoyproxy-ratelimit.md" || page == "envoyfilters.md" { // nothing to simulate
			continue
		}
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		m := verifies.FindSubmatchIndex(text)
		if m == nil {
			t.Errorf("%s has no command with what it prints", page)
			continue
		}
		var args []string
		command := strings.ReplaceAll(string(text[m[2]:m[3]]), "\\\n", "")
		for _, arg := range quoted.FindAllString(command, -1)[1:] {
			args = append(args, strings.Trim(arg, "'"))
		}
		out, err := exec.CommandContext(t.Context(), weir, args...).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", page, err, out)
			continue
		}
		got := string(table.Find(out))
		if *casetest.Update {
			text = append(append(text[:m[4]:m[4]], got...), text[m[5]:]...)
			if err := os.WriteFile(page, text, 0o644); err != nil {
				t.Fatal(err)
			}
		} else if want := string(text[m[4]:m[5]]); got != want {
			t.Errorf("%s: the command prints\n%swant\n%sgo test ./docs/migrating -run TestVerify -update writes it",
				page, got, want)
		}
	}
}
