package rulefile_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

// TestGolden compiles the rule files of each testdata/rules/*.txt and compares the result with the text below the line
// "---- compiled ----" or "---- errors ----". A line "==== name ====" begins another file. Of lenient*.txt, the result in
// a lenient process follows.
func TestGolden(t *testing.T) {
	cases, err := filepath.Glob("testdata/rules/*.txt")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no cases in testdata/rules: %v", err)
	}
	for _, path := range cases {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			rules, _, _ := strings.Cut(string(data), "\n---- ")
			got := rules + "\n" + result(t, descriptors.Process{}, split(rules+"\n"))
			if strings.Contains(path, "/lenient") {
				got += "==== in a lenient process ====\n" + result(t, descriptors.Process{Lenient: true}, split(rules+"\n"))
			}
			compareFile(t, path, got)
		})
	}
}

func compareFile(t *testing.T, path, got string) {
	t.Helper()
	if *casetest.Update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s, %v: -want +got (go test -update writes it)\n%s", path, err, diff)
	}
}

// TestItemByItem compiles each case item by item and as a whole, and checks that both give the same.
func TestItemByItem(t *testing.T) {
	for _, rules := range ruleFiles(t) {
		sameItemByItem(t, split(rules))
	}
}

// ruleFiles are the rule files of the golden tests.
func ruleFiles(tb testing.TB) (all []string) {
	tb.Helper()
	cases, err := filepath.Glob("testdata/rules/*.txt")
	if err != nil || len(cases) == 0 {
		tb.Fatalf("no cases in testdata/rules: %v", err)
	}
	for _, path := range cases {
		data, err := os.ReadFile(path)
		if err != nil {
			tb.Fatal(err)
		}
		rules, _, _ := strings.Cut(string(data), "\n---- ")
		all = append(all, rules+"\n")
	}
	return all
}

// TestItemByItemOnChangedFiles is TestItemByItem with random changes of the rule files.
func TestItemByItemOnChangedFiles(t *testing.T) {
	files := slices.DeleteFunc(ruleFiles(t), func(rules string) bool { return strings.Contains(rules, millionValues) })
	parts := []string{
		" ", "  ", "\n", "\n  ", "\n- ", "- ", "\n  -\n", ":", ": ", "#", " # c", "{", "}", "[", "]", ", ", "'", "\"", "a", "\u00e9",
		"---\n", "\n---\n", "...\n", "?", "&a ", "*a", "!", "|\n", ">\n", "|+\n", "%", "<<: ", "\\", "\t", "\r", "\r\n", "\u2028", "\ufeff", "a: b",
		"descriptors:\n", "domain: e\n", "\n\n", "yes", "'\n  - 'a'",
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SampledFrom(files).Draw(t, "file")
		if lines := strings.SplitAfter(text, "\n"); len(lines) > 12 {
			from := rapid.IntRange(2, len(lines)-10).Draw(t, "from")
			text = strings.Join(append(lines[:2:2], lines[from:from+10]...), "")
		}
		for range rapid.IntRange(0, 3).Draw(t, "changes") {
			at := rapid.IntRange(0, len(text)).Draw(t, "at")
			until := min(len(text), at+rapid.IntRange(0, 3).Draw(t, "without"))
			text = text[:at] + rapid.SampledFrom(parts).Draw(t, "part") + text[until:]
		}
		// The comment that sameItemByItem appends must begin a line, because ":#" is a text.
		file := rulefile.File{Name: "rules.yaml", Data: []byte(strings.TrimSuffix(text, "\n") + "\n")}
		sameItemByItem(t, []rulefile.File{file})
		checkAccepted(t, file)
	})
}

func sameItemByItem(t rapid.TB, files []rulefile.File) {
	t.Helper()
	defer rulefile.SetChunkSize(8 << 10)
	rulefile.SetChunkSize(1)
	got := outcome(t, files)
	rulefile.SetChunkSize(8 << 20)
	whole := slices.Clone(files)
	for i, f := range whole {
		if !f.Included {
			whole[i].Data = append(slices.Clone(f.Data), "#\u2028\n"...) // prevents item by item
		}
	}
	want := outcome(t, whole)
	if strings.Contains(want, "not valid YAML") || strings.Contains(want, "indent") {
		// As a whole, nothing else is reported of such a document; item by item, also what is wrong before. Where the
		// reader finds the error depends on the number of lines.
		for line := range strings.Lines(want) {
			if _, msg, _ := strings.Cut(line, ": "); !strings.Contains(got+"\n", strings.TrimSuffix(msg, "\n")+"\n") {
				t.Fatalf("%s is not reported item by item:\n%s\n%s", line, got, files[0].Data)
			}
		}
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("-as a whole +item by item\n%s\n%q", diff, files[0].Data)
	}
}

// outcome is the visible result of a Compile.
func outcome(t rapid.TB, files []rulefile.File) string {
	t.Helper()
	set, err := rulefile.Compile(files)
	if err != nil {
		return err.Error()
	}
	return show(t, set) + set.Warnings().Error()
}

func split(text string) []rulefile.File {
	files := []rulefile.File{{Name: "rules.yaml"}}
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "==== "); ok {
			name = strings.TrimSuffix(name, " ====\n")
			files = append(files, rulefile.File{Name: name, Included: !strings.HasSuffix(name, ".yaml")})
			continue
		}
		last := &files[len(files)-1]
		last.Data = append(last.Data, line...)
	}
	if len(files[0].Data) == 0 {
		files = files[1:]
	}
	return files
}

func result(t *testing.T, process descriptors.Process, files []rulefile.File) string {
	t.Helper()
	set, err := rulefile.CompileFor(process, files)
	if err == nil {
		var b strings.Builder
		b.WriteString("---- compiled ----\n" + show(t, set))
		for _, w := range set.Warnings() {
			fmt.Fprintf(&b, "warning %s: %s\n", w.Code, w)
		}
		return b.String()
	}
	var all descriptors.Errors
	if !errors.As(err, &all) || len(all) == 0 || set != nil {
		t.Fatalf("Compile gave set %v and %T %v, want Errors alone", set, err, err)
	}
	return "---- errors ----\n" + err.Error() + "\n"
}

// show returns a set's JSON with one rule per line.
func show(t rapid.TB, set *descriptors.Set) string {
	t.Helper()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	for _, d := range set.Domains() {
		fmt.Fprintf(&b, "domain %s\n", d.Name())
		for _, r := range d.Rules() {
			b.WriteString("  ")
			if err := e.Encode(r); err != nil {
				t.Fatal(err)
			}
		}
	}
	return b.String()
}

// Whatever the order of files, limits get the same defaults.
func TestDefaultsOfAnyFile(t *testing.T) {
	data, err := os.ReadFile("testdata/rules/defaults.txt")
	if err != nil {
		t.Fatal(err)
	}
	rules, _, _ := strings.Cut(string(data), "\n---- ")
	files := split(rules + "\n")
	inOrder := outcome(t, files)
	files[0].Name, files[1].Name = files[1].Name, files[0].Name
	swap := strings.NewReplacer("rules.yaml", "zz.yaml", "zz.yaml", "rules.yaml")
	slices.Reverse(files)
	reversed := ids.ReplaceAllString(swap.Replace(outcome(t, files)), "")
	if diff := cmp.Diff(lines(ids.ReplaceAllString(inOrder, "")), lines(reversed)); diff != "" {
		t.Errorf("-in order +reversed\n%s", diff)
	}
}

var ids = regexp.MustCompile(`"id":\d+,`)

// lines are the sorted lines of a text, because warnings are sorted by their file.
func lines(text string) []string { return slices.Sorted(strings.SplitSeq(text, "\n")) }
