package descriptors_test

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
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
	shop := casetest.Compile(t, orderRules).Domain("shop")
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
	rapid.Check(t, func(t *rapid.T) {
		set, top := drawSet(t)
		d := set.Domain("d")
		for range 20 {
			es, _ := drawEntries(t, top)
			byKey := func(a, b descriptors.Entry) int { return strings.Compare(a.Key, b.Key) }
			slices.SortFunc(es, byKey)
			es = slices.CompactFunc(es, func(a, b descriptors.Entry) bool { return a.Key == b.Key })
			reached, isLimited := map[*descriptors.Rule]bool{nil: len(es) == 0}, false
			permute(slices.Clone(es), 0, func(order []descriptors.Entry) {
				r := d.Match(order)
				reached[r] = true
				isLimited = isLimited || r != nil && len(r.Limits) > 0
			})
			ordered, r := d.MatchUnordered(es)
			isWrong := r == nil && len(reached) > 1 ||
				r != nil && (d.Match(ordered) != r || isLimited != (len(r.Limits) > 0))
			if isWrong || !reached[r] {
				t.Fatalf("%v reaches %v as %v, want one of %v", es, r, ordered, reached)
			}
		}
	})
}

// permute calls do with every order of the entries.
func permute(entries []descriptors.Entry, from int, do func([]descriptors.Entry)) {
	if from == len(entries) {
		do(entries)
	}
	for i := from; i < len(entries); i++ {
		entries[from], entries[i] = entries[i], entries[from]
		permute(entries, from+1, do)
		entries[from], entries[i] = entries[i], entries[from]
	}
}
