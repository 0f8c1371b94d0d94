// Package docs holds the documentation, and this test that its examples work.
package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/pkg/descriptors/rulefile"
)

var fence = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

// TestExamplesLoad compiles every YAML block of every page that has a domain, and parses the others.
func TestExamplesLoad(t *testing.T) {
	blocks := 0
	for _, page := range pages(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range fence.FindAllSubmatchIndex(text, -1) {
			block, line := text[m[2]:m[3]], 1+strings.Count(string(text[:m[2]]), "\n")
			blocks++
			if !strings.Contains(string(block), "domain:") || strings.Contains(string(block), "typed_config") {
				var v any
				if err := yaml.Unmarshal(block, &v); err != nil {
					t.Errorf("%s:%d: %v", page, line, err)
				}
				continue
			}
			files := []rulefile.File{{Name: page, Data: block}}
			for _, to := range rulefile.Includes(files[0]) {
				files = append(files, rulefile.File{Name: to.Name, Data: []byte("from-a-file\n"), Included: true})
			}
			if _, err := rulefile.Compile(files); err != nil {
				t.Errorf("%s: the block at line %d does not load (its line 1 is that line):\n%v", page, line, err)
			}
		}
	}
	if blocks < 2 {
		t.Errorf("found %d YAML blocks: the pattern no longer finds them", blocks)
	}
}

// TestLinksLeadSomewhere checks the relative links of every page, and the headings of pages that links name.
func TestLinksLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:\s]*)(?:#([^)]*))?\)`)
	inRepository := regexp.MustCompile(`\]\(https://github\.com/weir-ratelimit/weir/(?:blob|tree)/main/`)
	anchors := map[string]map[string]bool{}
	for _, page := range append(pages(t), "../deploy/helm/weir/README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		root, err := filepath.Rel(filepath.Dir(page), "..")
		if err != nil {
			t.Fatal(err)
		}
		links := inRepository.ReplaceAllString(withoutCode(string(text)), "]("+root+"/")
		for _, m := range link.FindAllStringSubmatch(links, -1) {
			target := page
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(page), m[1])
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: the link to %s leads nowhere", page, m[1])
				continue
			}
			if m[2] == "" || filepath.Ext(target) != ".md" {
				continue
			}
			if anchors[target] == nil {
				anchors[target] = headings(t, target)
			}
			if !anchors[target][m[2]] {
				t.Errorf("%s: %s has no heading #%s", page, target, m[2])
			}
		}
	}
}

// withoutCode returns the text without blocks of code and inline code, in which links mean nothing.
func withoutCode(text string) string {
	text = regexp.MustCompile("(?ms)^[ \t]*```.*?^[ \t]*```[ \t]*$").ReplaceAllString(text, "")
	return regexp.MustCompile("`[^`\n]*`").ReplaceAllString(text, "`x`")
}

var (
	headingLine = regexp.MustCompile(`(?m)^#{1,6} +(.*?)[ #]*$`)
	headingID   = regexp.MustCompile(`<a (?:id|name)="([^"]+)"|\{ *#([\w-]+) *\}`)
	headingLink = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	notInAnchor = regexp.MustCompile(`[^\p{L}\p{N}\p{M}_ -]`)
)

// headings returns the anchors of a page, as GitHub makes them from its headings.
func headings(t *testing.T, page string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	anchors := map[string]bool{}
	blocks := regexp.MustCompile("(?ms)^[ \t]*```.*?^[ \t]*```[ \t]*$").ReplaceAllString(string(text), "")
	for _, m := range headingID.FindAllStringSubmatch(blocks, -1) {
		anchors[m[1]+m[2]] = true
	}
	for _, m := range headingLine.FindAllStringSubmatch(blocks, -1) {
		title := headingLink.ReplaceAllString(m[1], "$1")
		anchor := strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
		for n := 1; anchors[anchor]; n++ {
			anchor = fmt.Sprintf("%s-%d", strings.TrimSuffix(anchor, fmt.Sprintf("-%d", n-1)), n)
		}
		anchors[anchor] = true
	}
	return anchors
}

// pages are the Markdown files of the repository.
func pages(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob("../*.md")
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".md" {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestDecisions checks that the list of decisions has each one, that no two have one number, and that they stay few and
// short: at most 30 of at most 350 words. There may be gaps: a number is not used again.
func TestDecisions(t *testing.T) {
	index, err := os.ReadFile("adr/README.md")
	if err != nil {
		t.Fatal(err)
	}
	decisions, err := filepath.Glob("adr/0*.md")
	if err != nil || len(decisions) == 0 || len(decisions) > 30 {
		t.Fatalf("%d decisions, error %v: want 1 to 30; merge some", len(decisions), err)
	}
	known := map[string]string{}
	for _, path := range decisions {
		name := filepath.Base(path)
		number, _, _ := strings.Cut(name, "-")
		if other := known[number]; other != "" || len(number) != len("0001") {
			t.Errorf("adr/%s: want a number of four digits of its own; %s has it", name, other)
		}
		known[number] = name
		if !strings.Contains(string(index), "("+name+")") {
			t.Errorf("adr/README.md does not list %s", name)
		}
		if text, err := os.ReadFile(path); err != nil || len(strings.Fields(string(text))) > 350 {
			t.Errorf("%s: %d words, error %v: want at most 350", path, len(strings.Fields(string(text))), err)
		}
	}
}

// TestLines checks that text wraps at 100 columns. Tables, code, and what has no space to break at may be longer.
func TestLines(t *testing.T) {
	const most = 100
	for _, page := range pages(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		code := false
		for i, line := range strings.Split(string(text), "\n") {
			trimmed := strings.TrimSpace(line)
			if filepath.Base(page) == "README.zh-CN.md" { // Chinese has no spaces to wrap at
				break
			}
			if strings.HasPrefix(trimmed, "```") {
				code = !code
			}
			breakable := strings.Contains(inlineCode.ReplaceAllString(trimmed, ""), " ")
			if code || !breakable || strings.HasPrefix(trimmed, "|") || strings.HasPrefix(line, "    ") ||
				utf8.RuneCountInString(line) <= most {
				continue
			}
			t.Errorf("%s:%d: %d columns, want at most %d", page, i+1, utf8.RuneCountInString(line), most)
		}
	}
}

// inlineCode is kept on one line.
var inlineCode = regexp.MustCompile("`[^`]*`|\\[[^\\]]*\\]\\([^)]*\\)")
