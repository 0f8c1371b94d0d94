package podtest

import (
	_ "embed"
	"strings"
	"testing"
)

// page has every kind of block. ”' stands for the three backquotes.
//
//go:embed testdata/page.txt
var page string

func TestParse(t *testing.T) {
	blocks, err := parse(strings.ReplaceAll(page, "'''", "```"))
	if err != nil {
		t.Fatal(err)
	}
	want := []block{
		{kind: commands, line: 4, text: "weir init\n"},
		{kind: output, line: 8, text: "wrote ...\n"},
		{kind: file, line: 12, title: "rules/shop.yaml", text: "domain: shop\n  indented: true\n"},
		{kind: patch, line: 16, title: "envoy.yaml", key: "routes", text: "routes: []\n"},
		{kind: patch, line: 19, title: "envoy.yaml", key: "http_filters", below: "app", text: "http_filters: []\n"},
		{kind: terminal, line: 22, title: "Terminal 2", text: "weir serve\n"},
		{kind: output, line: 25, text: "msg=serving\n"},
		{kind: shown, line: 28, text: "shown: only\n"},
		{kind: shown, line: 31, text: "nothing runs before it\n"},
		{kind: shown, line: 35, text: "docker pull\n"},
		{kind: commands, line: 40, text: "false\n", exit: 3},
	}
	if len(blocks) != len(want) {
		t.Fatalf("%d blocks, want %d: %+v", len(blocks), len(want), blocks)
	}
	for i := range want {
		if blocks[i] != want[i] {
			t.Errorf("block %d:\n%+v\nwant\n%+v", i, blocks[i], want[i])
		}
	}
}

func TestMatchLines(t *testing.T) {
	for _, test := range []struct {
		want, got string
		whole     bool
		within    bool
	}{
		{"a\nb", "a\nb\n", true, true},
		{"a\nb", "a \nb\n\n", true, true},
		{"a\nb", "a\nx\nb\n", false, true},
		{"b\na", "a\nb\n", false, false},
		{"a", "aa\n", false, false},
		{"a...z", "a to z\n", true, true},
		{"a...z", "a\nz\n", false, false},
		{"a\n...\nz", "a\nz\n", true, true},
		{"a\n...\nz", "a\nb\nc\nz\n", true, true},
		{"...\nz", "a\nb\n", false, false},
		{"a.b", "axb\n", false, false},
		{"...", "", true, true},
		{"b", "a\n", false, false},
	} {
		if got := matchLines(test.want, test.got); got != test.whole {
			t.Errorf("matchLines(%q, %q) = %t", test.want, test.got, got)
		}
		if got := containsLines(test.want, test.got); got != test.within {
			t.Errorf("containsLines(%q, %q) = %t", test.want, test.got, got)
		}
	}
}
