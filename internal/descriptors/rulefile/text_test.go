package rulefile_test

import (
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
)

// A text in base64 is decoded in keys, values and domains, as in envoyproxy/ratelimit.
func TestBinaryText(t *testing.T) {
	set, err := rulefile.Compile([]rulefile.File{{Name: "f", Data: []byte(`
domain: !!binary c2hvcA==
descriptors:
  - key: !!binary a2V5
    value: !!binary aGVsbG8=
    rate_limit: {unit: minute, requests_per_unit: 2}
`)}})
	if err != nil {
		t.Fatal(err)
	}
	if shop := set.Domain("shop"); shop == nil || shop.Rule("key=hello") == nil {
		t.Errorf("there is no rule key=hello of domain shop: %v", set.Domains())
	}
	for _, text := range []string{"aGVsbG8", "/w=="} { // no base64, no UTF-8
		const want = `f:2:31: value is !!binary, but not base64 of UTF-8 text`
		_, err := rulefile.Compile([]rulefile.File{{Name: "f", Data: []byte("domain: a\ndescriptors: [{key: k, value: !!binary " +
			text + ", rate_limit: {unit: minute, requests_per_unit: 2}}]\n")}})
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("!!binary %s: %v, want %s", text, err, want)
		}
	}
}

// Invisible characters in keys and values, and fields without effect, have a warning with their position.
func TestWarningsOfTexts(t *testing.T) {
	for _, tt := range []struct{ descriptor, want string }{
		{`{key: k, value: "a b"}`, ""},
		{`{key: k, value: "日本語 é ❤ e\u0301 ⠁"}`, ""},
		{`{key: k, value: "a\u00a0b"}`, `f:3:21: value "a\u00a0b" has the invisible character U+00A0 at position 2`},
		{`{key: "\ufeffk"}`, `f:3:5: key "\ufeffk" has the invisible character U+FEFF at position 1`},
		{`{key: k, value: "ab\u200b"}`, `f:3:21: value "ab\u200b" has the invisible character U+200B at position 3`},
		{`{key: k, value: "a\u00adb"}`, `f:3:21: value "a\u00adb" has the invisible character U+00AD`},
		{`{key: k, value: "a\u3164b"}`, `f:3:21: value "a\u3164b" has the invisible character U+3164`},
		{`{key: k, value: "❤\ufe0f"}`, `f:3:21: value "\u2764\ufe0f" has the invisible character U+FE0F at position 2`},
		{`{key: "k\U000e0100"}`, `f:3:5: key "k\U000e0100" has the invisible character U+E0100 at position 2`},
		{`{key: k, values: [a, "b\u180bc"]}`, `f:3:26: an item of values "b\u180bc" has the invisible character U+180B at`},
		{`{key: k, value: "a\u2800b"}`, `f:3:21: value "a\u2800b" has the invisible character U+2800`},
		{`{key: k, value: "a\u180eb"}`, `f:3:21: value "a\u180eb" has the invisible character U+180E`},
		{`{key: k, value: "a\U000e0041"}`, `f:3:21: value "a\U000e0041" has the invisible character U+E0041`},
		{`{key: k, value: "\u115f\uffa0"}`, `f:3:21: value "\u115f\uffa0" has the invisible character U+115F at position 1`},
		{`{key: k, value: "a\u034fb"}`, `f:3:21: value "a\u034fb" has the invisible character U+034F`},
		{`{key: k, value: "a "}`, `f:3:21: value "a " has the invisible character U+0020 at position 2`},
		{`{key: " k"}`, `f:3:5: key " k" has the invisible character U+0020 at position 1`},
		{"{key: k, value: \"a\\n\"}", `f:3:21: value "a\n" has the invisible character U+000A at position 2`},
		{`{key: k, values: [a, "b\t"]}`, `f:3:26: an item of values "b\t" has the invisible character U+0009 at position 2`},
		{`{key: k, detailed_metric: true}`, "f:3:5: detailed_metric and value_to_metric have no effect"},
		{`{key: k, value_to_metric: true}`, "f:3:5: detailed_metric and value_to_metric have no effect"},
	} {
		set, err := rulefile.Compile([]rulefile.File{{Name: "f", Data: []byte("domain: a\ndescriptors:\n  - " +
			tt.descriptor + "\n")}})
		if err != nil {
			t.Errorf("%s: %v", tt.descriptor, err)
			continue
		}
		got := set.Warnings()
		isCode := len(got) == 1 && (got[0].Code == descriptors.WarnInvisible || got[0].Code == descriptors.WarnNoEffect)
		if len(got) > 1 || (tt.want != "") != isCode || !strings.HasPrefix(got.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", tt.descriptor, got, tt.want)
		}
	}
}

// A YAML directive is not reported as a mistake of indentation.
func TestDirective(t *testing.T) {
	_, err := rulefile.Compile([]rulefile.File{{Name: "f", Data: []byte("%YAML 1.2\n---\ndomain: a\ndescriptors: []\n")}})
	if err == nil || !strings.Contains(err.Error(), "f:1:1: ") ||
		!strings.Contains(err.Error(), "; remove the line that begins with %YAML") {
		t.Errorf("%v", err)
	}
}
