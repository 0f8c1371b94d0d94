package docs

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestReadmesAgree holds README.zh-CN.md in step with README.md: the same headings, code, tables and links, in order.
func TestReadmesAgree(t *testing.T) {
	english, chinese := outline(t, "../README.md"), outline(t, "../README.zh-CN.md")
	for i := range max(len(english), len(chinese)) {
		e, c := "nothing", "nothing"
		if i < len(english) {
			e = english[i]
		}
		if i < len(chinese) {
			c = chinese[i]
		}
		if e != c {
			t.Fatalf("README.md has %s where README.zh-CN.md has %s", e, c)
		}
	}
	if len(english) < 40 {
		t.Errorf("found %d things to compare: the patterns no longer find them", len(english))
	}
}

var (
	comment = regexp.MustCompile(`\s*#.*$`)
	target  = regexp.MustCompile(`\]\(([^)]+)\)`)
	heading = regexp.MustCompile(`^(#+) `)
)

// outline returns what the two languages have in common. Links of a list or paragraph are in the order of the text,
// which differs between languages, and are sorted.
func outline(t *testing.T, page string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var links []string
	flush := func() {
		slices.Sort(links)
		all, links = append(all, links...), nil
	}
	code := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "```"):
			flush()
			code = !code
			all = append(all, "the line "+line)
			continue
		case code:
			if line = comment.ReplaceAllString(line, ""); line != "" {
				all = append(all, "the line "+line)
			}
			continue
		case heading.MatchString(line):
			flush()
			all = append(all, "a heading "+heading.FindStringSubmatch(line)[1])
		case strings.HasPrefix(line, "|"):
			flush()
			all = append(all, fmt.Sprintf("a row of %d columns", strings.Count(line, "|")-1))
			for _, command := range inlineCode.FindAllString(line, -1) {
				if strings.HasPrefix(command, "`") && strings.Contains(command, " ") {
					all = append(all, "the command "+command)
				}
			}
		}
		for _, m := range target.FindAllStringSubmatch(line, -1) {
			if !strings.HasPrefix(m[1], "README") { // of the other language
				links = append(links, "the link "+m[1])
			}
		}
	}
	flush()
	return all
}

// TestReadmeIsShort keeps README.md to what a stranger reads.
func TestReadmeIsShort(t *testing.T) {
	for _, page := range []string{"../README.md", "../README.zh-CN.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if lines := strings.Count(string(text), "\n"); lines >= 200 {
			t.Errorf("%s: %d lines, want less than 200", page, lines)
		}
	}
}
