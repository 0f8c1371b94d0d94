package rulefile_test

import (
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
)

// A rule that envoyproxy/ratelimit tolerates is a warning in a lenient process and an error in others, at the same
// position.
func TestLenient(t *testing.T) {
	tests := []struct{ name, rules, want string }{
		{
			"the same key twice", `
  - {key: a, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: a, rate_limit: {unit: hour, requests_per_unit: 2}, descriptors: [{key: b, rate_limit: {unit: hour, requests_per_unit: 3}}]}`,
			"f:4:5: a is already given at f:3; merge the two descriptors; " +
				"until then the limits of the first one apply, with the descriptors of both",
		},
		{
			"the same value twice, the second one with the limit", `
  - {key: a, value: x, descriptors: [{key: b}]}
  - {key: a, value: x, rate_limit: {unit: hour, requests_per_unit: 1}}`,
			"f:4:5: a=x is already given at f:3; merge the two descriptors; until then both count as one",
		},
		{
			"the same pattern twice", `
  - {key: a, value: x*, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: a, value: x*, rate_limit: {unit: hour, requests_per_unit: 2}}`,
			"f:4:5: a=x* is already given at f:3; merge the two descriptors; " +
				"until then the limits of the first one apply, with the descriptors of both",
		},
		{
			"a pattern that is not reached", `
  - {key: a, value: x*, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: a, value: xy*, rate_limit: {unit: hour, requests_per_unit: 2}}`,
			"f:4:21: value xy* is never reached: x* at f:3 matches everything that it matches; move it up, before that one; " +
				"until then no request reaches it",
		},
		{
			"a key with a star", `
  - {key: 'route/*', value: 'route/*', rate_limit: {unit: hour, requests_per_unit: 1}}`,
			"f:3:5: key route/* contains *, which is a wildcard only in value; write the whole key; " +
				"until then only an entry with exactly this key matches",
		},
		{
			"replaces of nothing", `
  - {key: a, rate_limit: {unit: hour, requests_per_unit: 1, replaces: [{name: x}]}}`,
			"f:3:72: replaces x, but no limit of domain shop has that name; give the limit that it replaces a name; " +
				"until then it replaces nothing",
		},
		{
			"replaces in a circle", `
  - {key: a, rate_limit: {name: a, unit: hour, requests_per_unit: 1, replaces: [{name: b}]}}
  - {key: b, rate_limit: {name: b, unit: hour, requests_per_unit: 1, replaces: [{name: a}]}}`,
			"f:4:81: these limits replace one another, so that none would apply: a replaces b replaces a; " +
				"remove one of them from replaces; until then a request that matches all of these limits has none of them",
		},
		{
			"replaces with another field", `
  - {key: a, rate_limit: {name: a, unit: hour, requests_per_unit: 1}}
  - {key: b, rate_limit: {unit: hour, requests_per_unit: 1, replaces: [{name: a, unit: hour}]}}`,
			"f:4:82: unit is not a field of an item of replaces; it belongs in rate_limit; until then it has no effect",
		},
		{
			"unlimited beside a unit", `
  - {key: a, rate_limit: {unlimited: true, unit: hour}}`,
			"f:3:50: unlimited: true and unit contradict each other; " +
				"to limit, remove unlimited; to limit nothing, remove unit; until then nothing is limited",
		},
		{
			"no rate", `
  - {key: a, rate_limit: {unit: hour}}`,
			"f:3:26: requests_per_unit is missing; write how many requests may pass, 0 to deny all of them, or unlimited: true; " +
				"until then it denies everything",
		},
		{
			"a field twice", `
  - {key: a, rate_limit: {unit: hour, requests_per_unit: 1, unit: day}}`,
			"f:3:61: unit is already given at f:3:27; remove one of the two; until then the last one applies",
		},
		{
			"no descriptors", ` []`,
			"f:2:14: domain shop has no rules here, so that it would limit nothing; " +
				"write descriptors: with at least one rule (- key: none limits nothing), or remove this document of the file; until then no request of this domain is limited",
		},
		{
			"share_threshold without a star", `
  - {key: a, value: x, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 1}}`,
			"f:3:41: share_threshold needs a value that contains *, or values, values_file, cidr or regex, whose " +
				"requests then share one counter; remove share_threshold, or write one of these fields; until then it has no effect",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			files := []rulefile.File{{Name: "f", Data: []byte("domain: shop\ndescriptors:" + tt.rules + "\n")}}
			set, err := rulefile.CompileFor(descriptors.Process{Lenient: true}, files)
			if err != nil {
				t.Fatal(err)
			}
			if got := set.Warnings(); len(got) != 1 || got[0].Error() != tt.want || got[0].Code != descriptors.WarnTolerated {
				t.Errorf("\n got %v\nwant %s", got, tt.want)
			}
			paths := map[string]bool{}
			for _, d := range set.Domains() {
				for _, r := range d.Rules() {
					if paths[r.Path] {
						t.Errorf("there are two rules %s", r.Path)
					}
					paths[r.Path] = true
				}
			}
			want, _, _ := strings.Cut(tt.want, "; until then")
			if _, err := rulefile.Compile(files); err == nil || err.Error() != want {
				t.Errorf("a strict process:\n got %v\nwant %s", err, want)
			}
		})
	}
}

// Results in a lenient process of rules that other processes refuse.
func TestLenientMeans(t *testing.T) {
	set, err := rulefile.CompileFor(descriptors.Process{Lenient: true}, []rulefile.File{{Name: "f", Data: []byte(`
domain: shop
name: shop
descriptors:
  - {key: a, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: a, rate_limit: {unit: hour, requests_per_unit: 2}, descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 3}}]}
  - {key: cidr, value: 10.0.0.0/8, rate_limit: {unit: hour, requests_per_unit: 4}}
  - {key: cidr, value: 10.0.0.0/8, descriptors: [{key: ip, rate_limit: {unit: hour, requests_per_unit: 5}}]}
  - {key: late, value: x, descriptors: [{key: b}]}
  - {key: late, value: x, rate_limit: {unit: hour, requests_per_unit: 6}}
  - {key: 'r/*', value: 'r/*', descriptors: [{key: m, rate_limit: {unit: hour, requests_per_unit: 7}}]}
  - {key: twice, rate_limit: {unit: hour, requests_per_unit: 1, requests_per_unit: 8}}
  - {key: free, rate_limit: {unlimited: true, unit: fortnight}}
  - {key: wrong, name: x, unlimited: true, replaces: [{name: x}], rate_limit: {unit: hour, requests_per_unit: 9, shadow_mode: true, key: k}}
`)}})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]int64{
		"a=1": 1, "a=1,b=2": 3, "cidr=10.0.0.0/8": 4, "cidr=10.0.0.0/8,ip=10.1.1.1": 5, "late=x": 6, "r/*=r/*,m=1": 7,
		"twice=1": 8, "wrong=1": 9, "free=1": -1, "r/1=r/*,m=1": -2, "late=x,b=1": -1,
	} {
		entries, err := descriptors.ParseEntries(text)
		if err != nil {
			t.Fatal(err)
		}
		got := int64(-2) // no rule
		if r := set.Domain("shop").Match(entries); r != nil {
			if got = -1; len(r.Limits) > 0 { // no limit
				got = r.Limits[0].Policy.Limit()
			}
		}
		if got != want {
			t.Errorf("%s has a limit of %d, want %d", text, got, want)
		}
	}
	// What envoyproxy/ratelimit refuses is an error here as well.
	for _, rule := range []string{
		"{key: a, nonsense: 1}", "{key: ''}", "{key: a, rate_limit: {unit: fortnight, requests_per_unit: 1}}",
	} {
		files := []rulefile.File{{Name: "f", Data: []byte("domain: shop\ndescriptors: [" + rule + "]\n")}}
		if _, err := rulefile.CompileFor(descriptors.Process{Lenient: true}, files); err == nil {
			t.Errorf("%s is not refused", rule)
		}
	}
}

// TestLenientFiles: files that look like mistakes, but that envoyproxy/ratelimit accepts.
func TestLenientFiles(t *testing.T) {
	for _, tt := range []struct {
		text string
		want int64 // the limit of a=1; -1: none, -2: no rule
	}{
		{"", -2},
		{"descriptors:", -2},
		{"name: x\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 3}}]", 3},
		{"descriptors: [{key: a, rate_limit: {unit: day}}]", 0},
		{"descriptors: [{key: a, rate_limit: }]", -1},
		{"descriptors: [{key: a, name: n, unlimited: true, unit: day, requests_per_unit: 1, replaces: [{name: x}]}]", -1},
		{"key: a\nshadow_mode: true\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 4}}]", 4},
		{"descriptors: [{key: a, domain: x, rate_limit: {unit: day, requests_per_unit: 3, key: b, value: c}}]", 3},
		{"descriptors: [{key: a, rate_limit: {unlimited: true, requests_per_unit: 3}}]", -1},
		{"descriptors:\n  - key: b\n    key: a\n    rate_limit: {unit: day, requests_per_unit: 3}", 3},
		{"descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 3}}]\n---\nnonsense: 1", 3},
	} {
		files := []rulefile.File{{Name: "f", Data: []byte("domain: d\n" + tt.text + "\n")}}
		set, err := rulefile.CompileFor(descriptors.Process{Lenient: true}, files)
		if err != nil {
			t.Errorf("%s\nis refused: %v", tt.text, err)
			continue
		}
		got := int64(-2)
		if d := set.Domain("d"); d != nil {
			if r := d.Match([]descriptors.Entry{{Key: "a", Value: "1"}}); r != nil {
				if got = -1; len(r.Limits) > 0 {
					got = r.Limits[0].Policy.Limit()
				}
			}
		}
		if got != tt.want {
			t.Errorf("%s\nhas a limit of %d, want %d", tt.text, got, tt.want)
		}
	}
}
