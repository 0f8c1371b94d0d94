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

const formRules = `
domain: shop
descriptors:
  - {key: v, value: one}
  - {key: v, values: [two, three, '#4']}
  - {key: v, regex: '[a-z]+'}
  - {key: v, value: t*}
  - {key: ip, value: 10.9.*}
  - {key: ip, cidr: [10.0.0.0/8, '2001:db8::/32', 'fe80::/10']}
  - {key: ip, cidr: [10.1.0.0/16]}
  - {key: ip, cidr: [0.0.0.0/0]}
  - {key: ip, regex: '10\.2\..*'}
  - {key: ip, value: '*'}
  - {key: re, regex: '/v[0-9]+/users'}
  - {key: re, regex: '/v[0-9]+/.*'}
  - {key: re, value: /v*}
  - {key: re, regex: '(?i)/HEALTH'}
  - {key: re, regex: 'a|ab'}
  - {key: re, regex: '^x$'}
  - {key: re, regex: '(/p)(/[a-z]*)\.html'}
  - {key: re, regex: 'abc.*bcd'}
  - {key: re, regex: 'mm.?m|mm'}
  - {key: re}
`

func TestMatchForms(t *testing.T) {
	shop := casetest.Compile(t, formRules).Domain("shop")
	for _, tt := range []struct{ entry, path string }{
		{"v=one", "v=one"},
		{"v=two", "v values two, three, #4"}, // an exact value goes before the regex above and below
		{"v=#4", "v values two, three, #4"},
		{"v=ten", "v regex [a-z]+"}, // the regex is above t*
		{"v=t1", "v=t*"},
		{"v=Two", ""},
		{"ip=10.9.1.1", "ip=10.9.*"}, // above the block
		{"ip=10.8.1.1", "ip cidr 10.0.0.0/8, 2001:db8::/32, fe80::/10"},
		{"ip=10.1.1.1", "ip cidr 10.1.0.0/16"}, // the longest, though below
		{"ip=10.2.1.1", "ip cidr 10.0.0.0/8, 2001:db8::/32, fe80::/10"},
		{"ip=9.9.9.9", "ip cidr 0.0.0.0/0"},
		{"ip=::ffff:10.1.1.1", "ip cidr 10.1.0.0/16"},
		{"ip=::FFFF:0a01:0101", "ip cidr 10.1.0.0/16"},
		{"ip=0000:0000:0000:0000:0000:ffff:010.001.001.001", "ip=*"}, // a leading zero is no address
		{"ip=2001:db8::1", "ip cidr 10.0.0.0/8, 2001:db8::/32, fe80::/10"},
		{"ip=fe80::1%eth0", "ip cidr 10.0.0.0/8, 2001:db8::/32, fe80::/10"},
		{"ip=10.1.1.1%eth0", "ip=*"},
		{"ip=2001:db9::1", "ip=*"}, // no IPv6 block, and 0.0.0.0/0 is none
		{"ip=10.8.1.1:80", "ip=*"},
		{"ip=[2001:db8::1]", "ip=*"},
		{"ip=10.8.1", "ip=*"},
		{"ip=10.2.x", `ip regex 10\.2\..*`},
		{"ip=", "ip=*"},
		{"re=/v1/users", "re regex /v[0-9]+/users"},
		{"re=/v1/users/", "re regex /v[0-9]+/.*"}, // the whole value must match
		{"re=/vx", "re=/v*"},
		{"re=/health", "re regex (?i)/HEALTH"},
		{"re=ab", "re regex a|ab"}, // anchored at both ends of each alternative
		{"re=abc", "re"},
		{"re=x", "re regex ^x$"},
		{"re=/p/a.html", `re regex (/p)(/[a-z]*)\.html`},
		{"re=/p/A.html", "re"},
		{"re=abcd", "re"}, // the fixed ends overlap
		{"re=abcbcd", "re regex abc.*bcd"},
		{"re=mm", "re regex mm.?m|mm"},
	} {
		got := ""
		if r := shop.Match(casetest.Entries(tt.entry)); r != nil {
			got = r.Path
		}
		if got != tt.path {
			t.Errorf("Match(%s) is %q, want %q", tt.entry, got, tt.path)
		}
	}
}

func TestMatchFormsAllocatesNothing(t *testing.T) {
	shop := casetest.Compile(t, formRules).Domain("shop")
	for _, text := range []string{
		"v=two", "v=ten", "v=none4", "ip=10.1.1.1", "ip=2001:db8::1", "ip=::ffff:10.1.1.1", "ip=fe80::1%eth0",
		"ip=host.example",
		"ip=" + strings.Repeat("1", 1000), "re=/v1/users", "re=/v1/" + strings.Repeat("x", 1000), "re=nothing",
	} {
		es := casetest.Entries(text)
		if n := testing.AllocsPerRun(100, func() { shop.Match(es) }); n != 0 {
			t.Errorf("Match(%.40s) allocates %v times, want 0", text, n)
		}
	}
}

func TestSharedKeysOfForms(t *testing.T) {
	long := strings.Repeat("x", 100)
	shop := casetest.Compile(t, `
domain: d
descriptors:
  - {key: a, values: [y, 'x,#z'], share_threshold: true, rate_limit: &l {requests_per_unit: 1, unit: second}}
  - {key: a, cidr: [11.0.0.0/8, 10.0.0.0/8], share_threshold: true, rate_limit: *l}
  - {key: a, regex: 'q.*', share_threshold: true, rate_limit: *l}
  - {key: a, values: [`+long+`], share_threshold: true, rate_limit: *l}
  - {key: a, values: [s], rate_limit: *l}
`).Domain("d")
	var got []string
	for _, value := range []string{"y", "x,#z", "10.1.1.1", "qq", long, "s"} {
		es := []descriptors.Entry{{Key: "a", Value: value}}
		got = append(got, string(shop.Match(es).Limits[0].AppendKey(nil, es)))
	}
	want := []string{
		"fixed_window|d|a=*#values:x%2C%23z,y",
		"fixed_window|d|a=*#values:x%2C%23z,y",
		"fixed_window|d|a=*#cidr:10.0.0.0/8,11.0.0.0/8",
		"fixed_window|d|a=*#regex:q.%2A",
		"fixed_window|d|a=*#values:#09ecb6ebc8bcefc733f6f2ec44f791ab",
		"fixed_window|d|a=s",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("keys -want +got\n%s", diff)
	}
}

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
