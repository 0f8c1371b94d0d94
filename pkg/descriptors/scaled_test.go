package descriptors_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/test/ruletest"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

const scaledRules = `
domain: shop
descriptors:
  - key: client
    rate_limits:
      - {name: first, algorithm: funnel, requests_per_unit: 10, unit: second, burst: 21, on_store_failure: local}
      - {algorithm: sliding_window, requests_per_unit: 10, unit: day, segment_cap: 5, segments: 24}
      - {algorithm: concurrency, requests_per_unit: 10, lease: 1m}
    descriptors:
      - {key: path, value: /checkout*, rate_limit: {requests_per_unit: 1, unit: minute}}
  - {key: banned, rate_limit: {requests_per_unit: 0, unit: minute}}
  - {key: log, rate_limit: {algorithm: sliding_log, requests_per_unit: 9000, unit: minute}}
`

// A scaled limit has other numbers, and its counter, ID, name and rule are those of the limit.
func TestScaled(t *testing.T) {
	shop := ruletest.Compile(t, scaledRules).Domain("shop")
	entries := []descriptors.Entry{{Key: "client", Value: "c"}}
	type numbers struct{ Limit, Capacity, Local int64 }
	for _, tt := range []struct {
		factor float64
		want   []numbers
	}{
		{2, []numbers{{20, 42, 42}, {20, 10, 0}, {20, 20, 0}}},
		{0.5, []numbers{{5, 10, 10}, {5, 2, 0}, {5, 5, 0}}},
		{1.1, []numbers{{11, 23, 23}, {11, 5, 0}, {11, 11, 0}}},
	} {
		var got []numbers
		for _, l := range shop.Rule("client").Limits {
			s, err := l.Scaled(tt.factor)
			if err != nil {
				t.Fatal(err)
			}
			n := numbers{Limit: s.Policy.Limit(), Capacity: s.Policy.Capacity()}
			if s.Local != nil {
				n.Local = s.Local.Capacity()
			}
			got = append(got, n)
			if s.ID != l.ID || s.Name != l.Name || s.Rule != l.Rule || s.Policy.Window() != l.Policy.Window() {
				t.Errorf("times %g: limit %d is %+v", tt.factor, l.ID, s)
			}
			if a, b := string(l.AppendKey(nil, entries)), string(s.AppendKey(nil, entries)); a != b {
				t.Errorf("times %g: the counter is %s, and was %s", tt.factor, b, a)
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("times %g (-want +got)\n%s", tt.factor, diff)
		}
	}
	if l := shop.Rule("client").Limits[0]; l.Policy.Limit() != 10 || l.Policy.Capacity() != 21 {
		t.Errorf("the limit itself has become %d, %d", l.Policy.Limit(), l.Policy.Capacity())
	}
}

func TestScaledErrors(t *testing.T) {
	shop := ruletest.Compile(t, scaledRules).Domain("shop")
	for _, tt := range []struct {
		rule   string
		limit  int
		factor float64
		want   string
	}{
		{"banned", 0, 2, "limit 1 of banned times 2: it lets nothing pass (requests_per_unit: 0), which no factor changes"},
		{"client > path=/checkout*", 0, 0.5, "requests_per_unit would be 0; it must be between 1 and 4294967295"},
		{"client", 1, 0.15, "limit 2 of client times 0.15: segment_cap would be 0; it must be between 1"},
		{"client", 0, 1e9, "limit first of client times 1e+09: requests_per_unit would be 1e+10; it must be between 1 and " +
			"4294967295"},
		{"log", 0, 2, "requests_per_unit: "},
	} {
		_, err := shop.Rule(tt.rule).Limits[tt.limit].Scaled(tt.factor)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s times %g: %v, want an error with %q", tt.rule, tt.factor, err, tt.want)
		}
	}
}

// What a request brings along is another limit.
func TestScaledIsOfTheRule(t *testing.T) {
	shop := ruletest.Compile(t, scaledRules).Domain("shop")
	if shop.Rule("nothing") != nil {
		t.Error("there is a rule nothing")
	}
	own, err := shop.Rule("client").Override(7, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if own == shop.Rule("client").Limits[0] {
		t.Error("an override is the rule's limit")
	}
}

func TestEntries(t *testing.T) {
	for text, want := range map[string][]descriptors.Entry{
		"a=b":               {{Key: "a", Value: "b"}},
		"a=b,c=d":           {{Key: "a", Value: "b"}, {Key: "c", Value: "d"}},
		"a=":                {{Key: "a"}},
		"a=b=c":             {{Key: "a", Value: "b=c"}},
		`a=b\,c,d=\\,e=\x`:  {{Key: "a", Value: "b,c"}, {Key: "d", Value: `\`}, {Key: "e", Value: `\x`}},
		"path=/a b?c&d,e=é": {{Key: "path", Value: "/a b?c&d"}, {Key: "e", Value: "é"}},
	} {
		got, err := descriptors.ParseEntries(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", text, diff)
		}
		again, err := descriptors.ParseEntries(descriptors.FormatEntries(got))
		if diff := cmp.Diff(got, again); diff != "" || err != nil {
			t.Errorf("%s written and read again: %v (-want +got)\n%s", text, err, diff)
		}
	}
	for text, want := range map[string]string{
		"":      "a descriptor is missing; write key=value,key=value",
		"=b":    "entry 1 has no key",
		"a":     "entry 1, a, has no =; write a=VALUE, or a= for an empty value",
		"a=b,c": "entry 2, c, has no =; write c=VALUE, or c= for an empty value",
		"a=b,":  "entry 2 has no key",
		"a=b,,": `entry 2 has no key; write key=value,key=value, and \, for a comma in a value`,
	} {
		if _, err := descriptors.ParseEntries(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error with %q", text, err, want)
		}
	}
}
