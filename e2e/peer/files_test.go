//go:build e2e

package peer

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// oddFile is a rule file that the peer reads, though it looks like a mistake, and what is asked of it. DOMAIN is the
// file's domain.
type oddFile struct{ name, text, ask string }

// oddFiles are those of testdata/oddfiles.txt, each below a line "# name: ask", and one of a hundred levels.
func oddFiles(t *testing.T) []oddFile {
	t.Helper()
	text, err := os.ReadFile("testdata/oddfiles.txt")
	if err != nil {
		t.Fatal(err)
	}
	deep := "descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 3}}]"
	for range 99 {
		deep = "descriptors: [{key: k, " + deep + "}]"
	}
	files := []oddFile{{"a hundred levels", "domain: DOMAIN\n" + deep, strings.TrimSuffix(strings.Repeat("k=1,", 100), ",")}}
	for part := range strings.SplitSeq(strings.TrimPrefix(string(text), "# "), "\n# ") {
		head, file, _ := strings.Cut(part, "\n")
		name, ask, ok := strings.Cut(head, ": ")
		if !ok || file == "" {
			t.Fatalf("testdata/oddfiles.txt: %q has no file or no request", head)
		}
		files = append(files, oddFile{name, file, ask})
	}
	return files
}

// TestOddFiles loads files into both that the peer reads though they look like mistakes, by names of every kind.
func TestOddFiles(t *testing.T) {
	t.Parallel()
	odd, files := oddFiles(t), map[string]string{}
	for i, f := range odd {
		name := []string{"%d.yaml", "%d", "%d.json", "%d.txt"}[i%4]
		files[fmt.Sprintf(name, i)] = strings.ReplaceAll(f.text, "DOMAIN", fmt.Sprintf("domain%d", i))
	}
	p := startPair(t, writeRules(t, files), env{})
	for i, f := range odd {
		req := request(t, fmt.Sprintf("domain%d", i), f.ask)
		both := &series{pair: p}
		for range 2 {
			peer, weir := both.ask(t.Context(), req)
			for _, d := range differences(peer, weir) {
				t.Errorf("%s, %s: differ in %s", f.name, f.ask, d)
			}
			if peer.err != nil {
				t.Errorf("%s: the peer fails: %v", f.name, peer.err)
			}
		}
	}
}
