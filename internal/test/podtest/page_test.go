package podtest

import (
	"strings"
	"testing"
)

// page has every kind of block. ”' stands for the three backquotes.
const page = `
# A page

'''sh
weir init
'''

'''text
wrote ...
'''

   '''yaml title="rules/shop.yaml"
   domain: shop
     indented: true
   '''
'''yaml title="envoy.yaml: routes"
routes: []
'''
'''yaml title="envoy.yaml: http_filters of app"
http_filters: []
'''
'''sh title="Terminal 2"
weir serve
'''
'''text
msg=serving
'''
'''yaml
shown: only
'''
'''text
nothing runs before it
'''
<!-- not run: it needs a registry -->
'''sh
docker pull
'''
<!-- exit code 3 -->

'''sh
false
'''
`

func TestParse(t *testing.T) {
	blocks, err := parse(strings.ReplaceAll(page, "'''", "```"))
	if err != nil {
		t.Fatal(err)
	}
	want := []block{
		{kind: commands, line: 5, text: "weir init\n"},
		{kind: output, line: 9, text: "wrote ...\n"},
		{kind: file, line: 13, title: "rules/shop.yaml", text: "domain: shop\n  indented: true\n"},
		{kind: patch, line: 17, title: "envoy.yaml", key: "routes", text: "routes: []\n"},
		{kind: patch, line: 20, title: "envoy.yaml", key: "http_filters", below: "app", text: "http_filters: []\n"},
		{kind: terminal, line: 23, title: "Terminal 2", text: "weir serve\n"},
		{kind: output, line: 26, text: "msg=serving\n"},
		{kind: shown, line: 29, text: "shown: only\n"},
		{kind: shown, line: 32, text: "nothing runs before it\n"},
		{kind: shown, line: 36, text: "docker pull\n"},
		{kind: commands, line: 41, text: "false\n", exit: 3},
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
