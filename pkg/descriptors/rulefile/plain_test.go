package rulefile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// tree is a visitor that keeps all documents.
type tree struct{ roots, items []*yaml.Node }

func (t *tree) item(_ string, n *yaml.Node) { t.items = append(t.items, bare(n)) }

func (t *tree) document(root *yaml.Node) {
	root = bare(root)
	for i := 0; i < len(root.Content) && t.items != nil; i += 2 {
		if list := root.Content[i+1]; root.Content[i].Value == "descriptors" && list.Style == 0 &&
			list.Kind == yaml.SequenceNode {
			list.Content, t.items = t.items, nil
		}
	}
	t.roots = append(t.roots, root)
}

// parseTree is the roots of the text, with the items that were visited in their place. It is false where parsePlain
// leaves the text to the other parser.
func parseTree(text string) (roots []*yaml.Node, ok bool) {
	var t tree
	ok = parsePlain(text, &t)
	return t.roots, ok
}

// bare is a copy of the node without its comments.
func bare(n *yaml.Node) *yaml.Node {
	c := &yaml.Node{
		Kind: n.Kind, Style: n.Style, Tag: n.Tag, Value: strings.Clone(n.Value), Anchor: n.Anchor, Alias: n.Alias,
		Line: n.Line, Column: n.Column,
	}
	for _, child := range n.Content {
		c.Content = append(c.Content, bare(child))
	}
	return c
}

// samePlain checks that plain, where it takes a text, makes the same nodes of it as the parser of all YAML.
func samePlain(t interface {
	Helper()
	Fatalf(format string, args ...any)
}, text string,
) (taken bool) {
	t.Helper()
	got, ok := parseTree(text)
	if !ok {
		return false
	}
	var want []*yaml.Node
	roots, err := newReader(File{}, descriptors.NewBuilder(descriptors.Process{})).parseAll([]byte(text))
	for _, root := range roots {
		if !isNull(root) {
			want = append(want, bare(root))
		}
	}
	if err != nil {
		t.Fatalf("plain takes what is no YAML: %v\n%q", err, text)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("-all YAML +plain\n%s\n%s", diff, text)
	}
	return true
}

func TestPlainTakes(t *testing.T) {
	for name, text := range map[string]string{
		"block": "domain: shop\ndescriptors:\n  - key: path\n    value: /a/*\n    rate_limit:\n      unit: second\n      requests_per_unit: 10\n" +
			"    descriptors:\n    - key: method\n      value: GET\n  - key: b\ndescription: x y\n",
		"flow":         "domain: d\ndescriptors:\n  - {key: a, value: '*.html', rate_limit: {requests_per_unit: 1, unit: hour}}\n",
		"not indented": "domain: d\ndescriptors:\n- key: a\n  values: [a, 1, \"c d\", 10.0.0.1]\n- key: b\n",
		"lists":        "domain: d\ndescriptors:\n  - key: a\n    values:\n      - x\n      - 'y: z'\n      - 10.0.0.0/8\n  - key: c\n    metadata: {}\n    x-a: []\n",
		"comments":     "# rules\n---\n# of shop\ndomain: d # it\n\n  # indented\ndescriptors: # all\n  # one\n  - key: a # b\n# end\n",
		"documents":    "---\ndomain: a\n---\ndomain: b\ndescriptors: []\n---\n",
		"scalars": "domain: d\nx-a: [1, 0, 01, 0x1f, 1.5, 1e3, .5, .inf, -1, +1, true, yes, no, ~, null, 2026-11-21, 12:30:45, 1_000, 0o17, 0b1, " +
			"a:b, a#b, -x, 1234567890123456789012, =, Null, FALSE, y, n, on, Off]\n",
		"characters": "domain: d # Grüße ☺️\nx-b: größer als 漢字 # ü\nx-c: {ä: ö, ü: 'ß'}\n",
		"spaces":     "domain:   d   \ndescriptors:\n  -   key:  a\n      value:   b\n",
		"no end":     "domain: d",
		"twice":      "descriptors:\n  - a: b\ndescriptors:\n  - c\n",
	} {
		if !samePlain(t, text) {
			t.Errorf("%s: left to the other parser:\n%s", name, text)
		}
	}
}

func TestPlainLeaves(t *testing.T) {
	for _, text := range []string{
		"a: &x b", "a: *x", "a: !t b", "a: |\n  b", "a: >\n  b", "? a\n: b", "%YAML 1.2\n---\na: b", "a: b\n...\n",
		"a: \"b\\n\"", "a: 'it''s'",
		"a:\tb", "a: b\r\n", "\ufeffa: b", "a: b\u2028", "a: b\n  c", "a: 'b\n  c'", "a: [b,\n  c]", "a:\n", "a:\n  b", "- a",
		"a", "a: {b}", "a: [b: c]",
		"a: {b: }", "a: [b, ]", "a: b: c", "a: b\n c: d", "a:\n  - b\n c: d", "a:\n  - b\n  c: d", "a: {b: c} d", "a: 'b'c",
		"a: {b:c}", "a : b", "a: b\n- c",
		"a:\n  -\n    b: c", "a:\n  - - b", "a: [b", "<<: b", "a: {<<: b}", "a: @b", "a: `b", "a: -", "a: - b", "a: ?", "a: ,", "a: #b", "a: ]", "a: b]\n c", "[a]: b",
		strings.Repeat("a", maxPlainKey+1) + ": b", "a: " + strings.Repeat("[", 200) + strings.Repeat("]", 200), "--- a", "a: b\n--- # c\n", "a: \x80", "a: \x01",
		"a: {b: c?d}", "a: {b: c[d}", "\"a\":b", "a: {\"b\":c}", "domain: d\ndescriptors:\n  - a: b\ndescriptors:\n  - c\n",
	} {
		if _, ok := parseTree(text); ok {
			t.Errorf("plain takes %q", text)
		}
	}
}

// ruleFiles are the rule files of the golden tests.
func ruleFiles(tb testing.TB) (all []string) {
	tb.Helper()
	paths, err := filepath.Glob("testdata/rules/*.txt")
	if err != nil || len(paths) == 0 {
		tb.Fatalf("no rule files: %v", err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			tb.Fatal(err)
		}
		rules, _, _ := strings.Cut(string(data), "\n---- ")
		if !strings.Contains(path, "aliases") { // slow on purpose
			all = append(all, rules+"\n")
		}
	}
	return all
}

// TestPlainEqual changes rule files here and there.
func TestPlainEqual(t *testing.T) {
	files := ruleFiles(t)
	files = append(files, "domain: d\ndescriptors:\n- key: a\n  value: b\n  rate_limit: {unit: day, requests_per_unit: 1}\n- {key: c, values: [d, 'e']}\n")
	parts := []string{
		" ", "  ", "\n", "\n  ", "\n- ", "- ", ":", ": ", "#", " #", " # c", "{", "}", "[", "]", ",", ", ", "'", "\"", "a", "é", "1", "-", "---\n", "\n---\n",
		"?", "&a ", "*a", "!", "|", ">", "%", "@", "~", "<<: ", ".", "\\", "\t", "a: b", "a:\n", "[a, b]", "{a: b}", "descriptors:\n", "\n\n", "\u00a0", "yes", "0x1",
	}
	taken := 0
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SampledFrom(files).Draw(t, "file")
		if lines := strings.SplitAfter(text, "\n"); len(lines) > 12 {
			from := rapid.IntRange(0, len(lines)-12).Draw(t, "from")
			text = strings.Join(append(lines[:2:2], lines[from:from+rapid.IntRange(2, 12).Draw(t, "lines")]...), "")
		}
		for range rapid.IntRange(0, 4).Draw(t, "changes") {
			at := rapid.IntRange(0, len(text)).Draw(t, "at")
			until := min(len(text), at+rapid.IntRange(0, 3).Draw(t, "without"))
			text = text[:at] + rapid.SampledFrom(parts).Draw(t, "part") + text[until:]
		}
		if samePlain(t, text) {
			taken++
		}
	})
	if taken == 0 {
		t.Error("plain took nothing")
	}
	t.Logf("plain took %d", taken)
}

func FuzzPlain(f *testing.F) {
	for _, rules := range ruleFiles(f) {
		f.Add(rules)
	}
	f.Fuzz(func(t *testing.T, text string) { samePlain(t, text) })
}
