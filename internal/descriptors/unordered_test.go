package descriptors_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/test/ruletest"
)

const orderRules = `
domain: shop
descriptors:
  - key: tenant
    descriptors:
      - key: path
        value: /checkout*
        rate_limit: {unit: second, requests_per_unit: 100}
      - {key: path, value: /free, rate_limit: {unlimited: true}}
      - {key: path, value: /known}
  - key: path
    descriptors:
      - key: tenant
        value: big
        rate_limit: {unit: second, requests_per_unit: 1000}
  - key: path
    value: /a
    descriptors:
      - key: path
        rate_limit: {unit: second, requests_per_unit: 10}
  - {key: generic_key, value: all, rate_limit: {unit: second, requests_per_unit: 10}}
`

func TestEntriesWithoutAnOrder(t *testing.T) {
	shop := ruletest.Compile(t, orderRules).Domain("shop")
	for _, tt := range []struct{ entries, rule, ordered string }{
		{"path=/checkout/1,tenant=small", "tenant > path=/checkout*", "tenant=small,path=/checkout/1"},
		{"path=/checkout/1,tenant=big", "tenant > path=/checkout*", "tenant=big,path=/checkout/1"},
		{"path=/free,tenant=big", "tenant > path=/free", "tenant=big,path=/free"},
		{"path=/other,tenant=big", "path > tenant=big", "path=/other,tenant=big"},
		{"path=/known,tenant=big", "path > tenant=big", "path=/known,tenant=big"},
		{"path=/known,tenant=small", "tenant > path=/known", "tenant=small,path=/known"},
		{"path=/other,tenant=small", "", ""},
		{"path=/other", "path", "path=/other"},
		{"generic_key=all", "generic_key=all", "generic_key=all"},
		{"generic_key=all,path=/a", "", ""},
		{"nobody=x", "", ""},
	} {
		entries, err := descriptors.ParseEntries(tt.entries)
		if err != nil {
			t.Fatal(err)
		}
		ordered, r := shop.MatchUnordered(entries)
		path := ""
		if r != nil {
			path = r.Path
		}
		if got := descriptors.FormatEntries(ordered); path != tt.rule || got != tt.ordered {
			t.Errorf("%s: rule %q by %q, want %q by %q", tt.entries, path, got, tt.rule, tt.ordered)
		}
	}
}

// TestUnorderedAgreesWithMatch compares MatchUnordered with Match of every order of the entries.
func TestUnorderedAgreesWithMatch(t *testing.T) {
	keys := []string{"a", "b", "c"}
	orders := [][]string{{"a", "b", "c"}, {"b", "a"}, {"c", "b", "a"}, {"a", "c"}, {"b"}, {"c", "a"}}
	rapid.Check(t, func(t *rapid.T) {
		var rules strings.Builder
		rules.WriteString("domain: d\ndescriptors:\n")
		for i, order := range orders {
			if !rapid.Bool().Draw(t, "has") {
				continue
			}
			indent := "  "
			for j, key := range order {
				value := strconv.Itoa(i % 2)
				if rapid.Bool().Draw(t, "any") {
					value = fmt.Sprintf("%d*", i)
				}
				fmt.Fprintf(&rules, "%s- key: %s\n%s  value: '%s'\n", indent, key, indent, value)
				if j == len(order)-1 {
					fmt.Fprintf(&rules, "%s  rate_limit: {unit: second, requests_per_unit: 1}\n", indent)
				} else {
					fmt.Fprintf(&rules, "%s  descriptors:\n", indent)
					indent += "    "
				}
			}
		}
		set, err := rulefile.Compile([]rulefile.File{{Name: "rules.yaml", Data: []byte(rules.String())}})
		if err != nil || set.Domain("d") == nil {
			t.Skip("the rules clash")
		}
		d := set.Domain("d")
		var entries []descriptors.Entry
		for _, key := range keys {
			if rapid.Bool().Draw(t, "sends") {
				entries = append(entries, descriptors.Entry{Key: key, Value: rapid.SampledFrom([]string{"0", "1", "2"}).Draw(t, "value")})
			}
		}
		if len(entries) == 0 {
			t.Skip("no entries")
		}
		var want []*descriptors.Rule
		permute(slices.Clone(entries), 0, func(order []descriptors.Entry) {
			if r := d.Match(order); r != nil && (len(r.Limits) > 0 || r.Unlimited) {
				want = append(want, r)
			}
		})
		_, r := d.MatchUnordered(entries)
		if len(want) == 0 {
			if r != nil && len(r.Limits) > 0 {
				t.Fatalf("%v reaches %s, and no order of it does\n%s", entries, r.Path, &rules)
			}
			return
		}
		if !slices.Contains(want, r) {
			t.Fatalf("%v reaches %v, want one of %d rules\n%s", entries, r, len(want), &rules)
		}
	})
}

// permute calls do with every order of the entries.
func permute(entries []descriptors.Entry, from int, do func([]descriptors.Entry)) {
	if from == len(entries) {
		do(entries)
		return
	}
	for i := from; i < len(entries); i++ {
		entries[from], entries[i] = entries[i], entries[from]
		permute(entries, from+1, do)
		entries[from], entries[i] = entries[i], entries[from]
	}
}
