//go:build e2e

package docs

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/pagetest"
)

// runMark is in the pages whose commands TestPages runs.
const runMark = "<!-- A test runs the commands of this page. -->"

// TestPages runs the commands of every page with the mark, among them all pages of docs/tasks.
func TestPages(t *testing.T) {
	for _, page := range pages(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(text, []byte(runMark)) {
			if filepath.Dir(page) == "tasks" && page != filepath.Join("tasks", "index.md") {
				t.Errorf("%s: no line %s", page, runMark)
			}
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(page), ".md"), func(t *testing.T) {
			t.Parallel()
			pagetest.Run(t, page)
		})
	}
}
