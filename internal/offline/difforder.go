package offline

import (
	"maps"
	"slices"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// order reports patterns that a value may match two of, and that take another turn than before.
func (c *changes) order(before, after *descriptors.Domain) {
	old := maps.Collect(branches(before))
	rules := byPath(after)
	for at, b := range branches(after) {
		if was := old[at]; was != nil {
			c.branchOrder(was, b, rules)
		}
	}
}

func (c *changes) branchOrder(before, after *descriptors.Branch, rules map[string]*descriptors.Rule) {
	now := map[string]int{}
	for i, p := range after.Patterns() {
		now[p.Rule().Path] = i + 1
	}
	var common []*descriptors.Pattern // as they were
	for _, p := range before.Patterns() {
		if now[p.Rule().Path] > 0 {
			common = append(common, p)
		}
	}
	byNow := func(a, b *descriptors.Pattern) int { return now[a.Rule().Path] - now[b.Rule().Path] }
	if slices.IsSortedFunc(common, byNow) {
		return // nearly always, so that pairs need not be compared
	}
	for j, q := range common {
		r := rules[q.Rule().Path]
		for _, p := range common[:j] {
			if path := p.Rule().Path; now[path] > now[r.Path] && mayShare(p, q) {
				c.all = append(c.all, Change{
					What: Reordered, Domain: r.Domain, Rule: r.Path, Source: r.Source,
					Fields: []FieldChange{{"matched", "after " + path, "before " + path}},
				})
			}
		}
	}
}

// mayShare reports whether a value may match both.
func mayShare(p, q *descriptors.Pattern) bool {
	switch pk, qk := p.Kind(), q.Kind(); {
	case pk == descriptors.ByCIDR && qk == descriptors.ByCIDR:
		return false // the longest block goes first, whatever the order
	case pk != descriptors.ByText || qk != descriptors.ByText:
		return true // or not: to find that out is not cheap
	default:
		return overlap(p.Text(), q.Text())
	}
}

// overlap says whether two patterns with * match a common text: row by row, can[j] reports whether the texts before
// a[i] and b[j] can be matched by one.
func overlap(a, b string) bool {
	can := make([]bool, len(b)+1)
	for i := 0; i <= len(a); i++ {
		diagonal := false // can[j-1] of the row above
		for j := 0; j <= len(b); j++ {
			above := can[j]
			switch {
			case i == 0 && j == 0:
				can[j] = true
			case i > 0 && a[i-1] == '*':
				can[j] = above || j > 0 && can[j-1]
			case j > 0 && b[j-1] == '*':
				can[j] = can[j-1] || i > 0 && above
			default:
				can[j] = i > 0 && j > 0 && diagonal && a[i-1] == b[j-1]
			}
			diagonal = above
		}
	}
	return can[len(b)]
}
