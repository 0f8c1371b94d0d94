package descriptors_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

func TestIncludes(t *testing.T) {
	text := `
domain: d
descriptors:
  - {key: a, values_file: one.txt}
  - key: b
    descriptors: [{key: c, values_file: deep/../two.txt}]
  - {key: c, values_file: ../out.txt}
  - {key: c, values_file: []}
  # - {key: c, values_file: no.txt}
  - {"key": "c", "values_file": "a \"b\".txt"}
  - key: d
    values_file: 'it''s # 4, it is.txt' # a comment
  - key: e
    values_file:  &name
      five é.txt # a comment
---
domain: e
descriptors: [{key: a, values_file: deep/three.txt, nonsense: 1}]
`
	got := rulefile.Includes(rulefile.File{Name: "dir/rules.yaml", Data: []byte(text)})
	want := []rulefile.Include{
		{Name: "dir/one.txt", At: "dir/rules.yaml:4:27"},
		{Name: "dir/two.txt", At: "dir/rules.yaml:6:41"},
		{Name: "dir/a \"b\".txt", At: "dir/rules.yaml:10:33"},
		{Name: "dir/it's # 4, it is.txt", At: "dir/rules.yaml:12:18"},
		{Name: "dir/five é.txt", At: "dir/rules.yaml:15:7"},
		{Name: "dir/deep/three.txt", At: "dir/rules.yaml:18:37"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Includes -want +got\n%s", diff)
	}
	if got := rulefile.Includes(rulefile.File{Name: "x", Data: []byte(text), Included: true}); got != nil {
		t.Errorf("an included file includes %v", got)
	}
}

// Many regexes with the same fixed beginning and end are refused.
func TestRegexesWithTheSameEndsAreBounded(t *testing.T) {
	rules := func(n int, form string) []rulefile.File {
		var b bytes.Buffer
		b.WriteString("domain: d\ndescriptors:\n")
		for i := range n {
			fmt.Fprintf(&b, "  - {key: k, regex: '"+form+"'}\n", i)
		}
		return []rulefile.File{{Name: "f", Data: b.Bytes()}}
	}
	for _, form := range []string{"/p/%d/[a-z]+", "[a-z]+/%d"} {
		if _, err := rulefile.Compile(rules(2000, form)); err != nil {
			t.Errorf("%s: %v", form, err)
		}
	}
	if _, err := rulefile.Compile(rules(31, ".*x%d.*")); err != nil {
		t.Error(err)
	}
	_, err := rulefile.Compile(rules(200, ".*x%d.*"))
	var all descriptors.Errors
	if want := "too many patterns and regexes of this key begin and end with the same fixed text, so that matching one value may take " +
		"819240 steps, and at most 130000 are allowed; begin or end k regex .*x199.* with different text"; !errors.As(err,
		&all) ||
		len(all) != 1 || !strings.HasPrefix(all[0].Msg, want) {
		t.Errorf("error %v, want one with %s", err, want)
	}
}

// FuzzValuesFile reads any values file. It must not panic, and every error must have a line of the file.
func FuzzValuesFile(f *testing.F) {
	f.Add([]byte("a\n# b\n\n c \r\nd*\na\n"))
	f.Add([]byte("\ufeff\x00\xff"))
	rules := rulefile.File{Name: "r.yaml", Data: []byte("domain: d\ndescriptors: [{key: k, values_file: v.txt}]")}
	f.Fuzz(func(t *testing.T, data []byte) {
		set, err := rulefile.Compile([]rulefile.File{rules, {Name: "v.txt", Data: data, Included: true}})
		if err == nil {
			for line := range strings.Lines(strings.TrimPrefix(string(data), "\ufeff")) {
				value := strings.TrimSpace(line)
				if found := set.Domain("d").Match([]descriptors.Entry{{Key: "k", Value: value}}) != nil; found != (value != "" &&
					value[0] != '#') {
					t.Errorf("Match(%q) found: %v", value, found)
				}
			}
			return
		}
		var all descriptors.Errors
		if !errors.As(err, &all) || len(all) == 0 {
			t.Fatalf("error is %T %v, want Errors", err, err)
		}
		for _, e := range all {
			if e.File != "v.txt" || e.Line < 1 || e.Line > 1+bytes.Count(data, []byte("\n")) {
				t.Errorf("%q leads nowhere", e)
			}
		}
	})
}

func BenchmarkMatchForms(b *testing.B) {
	forms := []struct{ name, line, entry string }{
		{"values", "  - {key: k, values: [a%[1]d, b%[1]d]}\n", "b%[1]d"},
		{"cidr", "  - {key: k, cidr: [10.%[2]d.%[3]d.0/24]}\n", "10.%[2]d.%[3]d.7"},
		{"regex_prefix", "  - {key: k, regex: '/team%[1]d/[a-z]+/v[0-9]+'}\n", "/team%[1]d/items/v2"},
		{"regex_suffix", "  - {key: k, regex: '/v[0-9]+/[a-z]+/res%[1]d'}\n", "/v2/items/res%[1]d"},
		{"regex_alike", "  - {key: k, regex: '.*[/-]res%[1]d[/-].*'}\n", "/v2/items/res%[1]d/7"}, // at most some 30
	}
	for _, f := range forms {
		for _, n := range []int{10, 100, 1000, 10_000} {
			if f.name == "regex_alike" && n > 10 {
				continue
			}
			var rules strings.Builder
			rules.WriteString("domain: d\ndescriptors:\n")
			for i := range n {
				fmt.Fprintf(&rules, f.line, i, i>>8, i&255)
			}
			last := n - 1
			value := fmt.Sprintf(f.entry, last, last>>8, last&255)
			es, d := []descriptors.Entry{{Key: "k", Value: value}}, casetest.Compile(b, rules.String()).Domain("d")
			b.Run(fmt.Sprintf("by=%s/rules=%d", f.name, n), func(b *testing.B) {
				if d.Match(es) == nil {
					b.Fatalf("Match(%v) found nothing", es)
				}
				b.ReportAllocs()
				for b.Loop() {
					d.Match(es)
				}
			})
		}
	}
}
