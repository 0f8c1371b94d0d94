package offline

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// limitPair is a limit before and after; one of the two is nil if it is only there once.
type limitPair struct{ was, is *descriptors.Limit }

// label is the limit's name; empty for a rule's only limit without a name, else # and its place among the rule's.
func (p limitPair) label() string {
	l := p.is
	if l == nil {
		l = p.was
	}
	if l.Name == "" && len(l.Rule.Limits) > 1 {
		return "#" + strconv.Itoa(l.Position())
	}
	return l.Name
}

// pairLimits pairs the limits of a rule that is in both sets, or is nil in one: the only ones, whatever they are
// called; those of one name; those without a name of one algorithm and window; and then those of one algorithm.
func pairLimits(before, after *descriptors.Rule) (pairs []limitPair) {
	var old, now []*descriptors.Limit
	if before != nil {
		old = slices.Clone(before.Limits)
	}
	if after != nil {
		now = slices.Clone(after.Limits)
	}
	if len(old) == 1 && len(now) == 1 {
		return []limitPair{{old[0], now[0]}}
	}
	unnamed := func(a, b *descriptors.Limit) bool {
		return a.Name == "" && b.Name == "" && a.Params().Algorithm == b.Params().Algorithm
	}
	for _, same := range []func(a, b *descriptors.Limit) bool{
		func(a, b *descriptors.Limit) bool { return a.Name != "" && a.Name == b.Name },
		func(a, b *descriptors.Limit) bool { return unnamed(a, b) && a.Params().Window == b.Params().Window },
		unnamed,
	} {
		for i := 0; i < len(now); i++ {
			at := slices.IndexFunc(old, func(was *descriptors.Limit) bool { return same(was, now[i]) })
			if at < 0 {
				continue
			}
			pairs = append(pairs, limitPair{old[at], now[i]})
			old, now = slices.Delete(old, at, at+1), slices.Delete(now, i, i+1)
			i--
		}
	}
	for _, l := range old {
		pairs = append(pairs, limitPair{l, nil})
	}
	for _, l := range now {
		pairs = append(pairs, limitPair{nil, l})
	}
	slices.SortStableFunc(pairs, func(a, b limitPair) int { return cmp.Compare(a.label(), b.label()) })
	return pairs
}

// differences are the fields that differ, and whether the counter starts again.
func (p limitPair) differences() (fields []FieldChange) {
	was, is := p.was, p.is
	before, after := limitFields(was), limitFields(is)
	if was.Params().Limit == is.Params().Limit && was.Policy.Capacity() == is.Policy.Capacity() {
		delete(before, "burst") // whether the default is written does not matter
		delete(after, "burst")
	}
	fields = differ(before, after)
	if len(fields) == 0 && !slices.Equal(was.Policy.Args(), is.Policy.Args()) {
		fields = []FieldChange{{"parameters", fmt.Sprint(was.Policy.Args()), fmt.Sprint(is.Policy.Args())}}
	}
	if was.SameCounters(is) {
		return fields
	}
	change := FieldChange{"counter", "as it was", "starts again: what was used is forgotten"}
	for _, other := range was.Rule.Limits {
		if other.SameCounters(is) {
			change.New = "the one of " + limitPair{was: other}.label() + " before, with what was used there; give limits a " +
				"name to avoid that"
		}
	}
	return append(fields, change)
}

// limitFields are what a limit says, by the names that rule files have for it, with defaults that depend on nothing.
func limitFields(l *descriptors.Limit) map[string]string {
	fields := fieldsOf(l, "id", "unit", "unit_multiplier", "capacity") // of which other fields say the same
	params := l.Params()
	if l.Policy.Algorithm() == limiter.SlidingWindow && params.Segments == 0 {
		fields["segments"] = "10" // as NewPolicy has it
	}
	if params.Burst != 0 {
		fields["burst"] = strconv.FormatInt(params.Burst, 10)
	}
	if params.BurstFor != 0 {
		fields["burst_seconds"] = strconv.FormatFloat(params.BurstFor.Seconds(), 'f', -1, 64)
	}
	if l.Policy.Algorithm().CountsInFlight() {
		fields["lease"] = fields["window"]
		delete(fields, "window")
	}
	return fields
}

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
