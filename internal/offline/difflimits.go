package offline

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// limitPair is a limit before and after; one of the two is nil if it is only there once.
type limitPair struct{ was, is *descriptors.Limit }

// label is the limit's name; empty for a rule's only limit without a name, else # and its index among the rule's.
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

// pairLimits pairs the limits of a rule that is in both sets, or is nil in one: the only ones, whatever their names;
// those of one name; and those without a name of one algorithm and window.
func pairLimits(before, after *descriptors.Rule) (pairs []limitPair) {
	var old, now []*descriptors.Limit
	if before != nil {
		old = slices.Clone(before.Limits)
	}
	if after != nil {
		now = after.Limits
	}
	if len(old) == 1 && len(now) == 1 {
		return []limitPair{{old[0], now[0]}}
	}
	for _, l := range now {
		p := limitPair{is: l}
		at := slices.IndexFunc(old, func(was *descriptors.Limit) bool {
			return was.Name == l.Name && (l.Name != "" || was.Params().Algorithm == l.Params().Algorithm &&
				was.Params().Window == l.Params().Window)
		})
		if at >= 0 {
			p.was = old[at]
			old = slices.Delete(old, at, at+1)
		}
		pairs = append(pairs, p)
	}
	for _, l := range old {
		pairs = append(pairs, limitPair{was: l})
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
	if len(fields) == 0 && !slices.Equal(was.Policy.Core().Args(), is.Policy.Core().Args()) {
		fields = []FieldChange{{"parameters", fmt.Sprint(was.Policy.Core().Args()), fmt.Sprint(is.Policy.Core().Args())}}
	}
	if !was.SameCounters(is) {
		fields = append(fields, FieldChange{"counter", "as it was", "another: what was used is forgotten"})
	}
	return fields
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

// order reports patterns of a key that are matched in another order than before.
func (c *changes) order(before, after *descriptors.Domain) {
	old := maps.Collect(branches(before))
	for at, b := range branches(after) {
		if was := old[at]; was != nil {
			c.branchOrder(was, b)
		}
	}
}

func (c *changes) branchOrder(before, after *descriptors.Branch) {
	now, patterns := map[string]int{}, after.Patterns()
	onlyBlocks := true // of which the longest matches first, whatever the order
	for i, p := range patterns {
		now[p.To.Rule.Path] = i + 1
		onlyBlocks = onlyBlocks && p.Kind() == descriptors.ByCIDR
	}
	if onlyBlocks {
		return
	}
	last := "" // the pattern that came before in the old order
	for _, p := range before.Patterns() {
		r := p.To.Rule
		if now[r.Path] == 0 {
			continue
		}
		if now[last] > now[r.Path] {
			c.all = append(c.all, Change{
				What: Reordered, Domain: r.Domain, Rule: r.Path, Source: patterns[now[r.Path]-1].To.Rule.Source,
				Fields: []FieldChange{{"matched", "after " + last, "before " + last}},
			})
		}
		last = r.Path
	}
}
