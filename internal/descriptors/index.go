package descriptors

import (
	"cmp"
	"slices"
	"strings"
)

// maxMatchSteps bounds what one value may cost at one level, in steps of about half a nanosecond: some 30 regexes that
// begin and end alike. It is checked when a set is compiled.
const maxMatchSteps = 130_000

// finishBranch makes the index of a branch's patterns, once all are there, and checks what needs it.
func (c *Builder) finishBranch(b *Branch) {
	if len(b.all) == 0 {
		return
	}
	if b.every != nil && b.Any != nil { // a pattern below such a pattern is an error
		c.Warnf(WarnUnreachable, b.positions[slices.Index(b.all, b.every)].value,
			"value %s matches every value, so that %s at %s is never reached; remove one of the two",
			b.every.Text, b.Any.Rule.Path, b.Any.Rule.Source)
	}
	b.index = c.index(b.all, false)
	if b.index.steps > maxMatchSteps {
		last := 0
		for i, p := range b.all {
			if strings.HasPrefix(b.index.costliest, p.prefix) && p.steps() >= MaxPatternValue {
				last = i
			}
		}
		c.Errorf(b.positions[last].value,
			"too many patterns and regexes of this key begin and end with the same fixed text, so that one value may "+
				"take %d steps, and at most %d are allowed; begin or end %s with different text, or write one regex for several",
			b.index.steps, maxMatchSteps, b.all[last].To.Rule.Path)
		b.positions = nil
		return // each search below would take as long
	}
	for i, p := range b.all {
		if c.Rest() != nil {
			return
		}
		if p.re != nil {
			continue
		}
		// The pattern that matches this one's text, in which * is a character like any other that no literal part has,
		// matches everything that this one matches.
		switch first := b.firstStar(p.Text); {
		case first == nil || first.order >= p.order:
		case first.Text == p.Text:
			c.alreadyThere(b.positions[i].descriptor, first.To)
		default:
			c.Tolerate(b.positions[i].value, "no request reaches it",
				"value %s is never reached: %s at %s matches everything that it matches; move it up, before that one",
				p.Text, first.Text, first.To.Rule.Source)
		}
	}
	b.positions = nil
}

// index makes the index of the patterns by their fixed beginnings, or by their ends.
func (c *Builder) index(patterns []*Pattern, byEnd bool) *affixes {
	affix, compare := func(p *Pattern) string { return p.prefix }, strings.Compare
	if byEnd {
		affix, compare = func(p *Pattern) string { return p.suffix }, compareEnds
	}
	members := slices.Clone(patterns)
	slices.SortStableFunc(members, func(a, b *Pattern) int { return compare(affix(a), affix(b)) })
	var texts []string
	var groups []group
	for len(members) > 0 {
		n := 1
		for n < len(members) && affix(members[n]) == affix(members[0]) {
			n++
		}
		texts = append(texts, affix(members[0]))
		if same := members[:n:n]; byEnd {
			groups = append(groups, newGroup(same))
		} else {
			groups = append(groups, c.group(same))
		}
		members = members[n:]
	}
	return newAffixes(texts, slices.Clip(groups), byEnd)
}

// compareEnds is strings.Compare of the texts from their last byte to their first.
func compareEnds(a, b string) int {
	for i := range min(len(a), len(b)) {
		if x, y := a[len(a)-1-i], b[len(b)-1-i]; x != y {
			return cmp.Compare(x, y)
		}
	}
	return cmp.Compare(len(a), len(b))
}

// group makes the group of patterns with the same fixed beginning, in file order.
func (c *Builder) group(patterns []*Pattern) group {
	g := newGroup(patterns)
	if len(patterns) <= maxTried {
		return g
	}
	var withTexts, others []*Pattern
	for _, p := range patterns {
		if len(p.middle) > 0 {
			withTexts = append(withTexts, p)
		} else {
			others = append(others, p)
		}
	}
	g.few = nil
	if len(others) > maxTried {
		g.bySuf = c.index(others, true)
	} else {
		g.few = others
	}
	if len(withTexts) > maxTried {
		g.sequences = c.sequences(withTexts)
	} else {
		g.few = append(g.few, withTexts...)
		slices.SortFunc(g.few, byOrder)
	}
	return g
}

// newGroup makes a group whose patterns, which are in file order, are tried one by one.
func newGroup(patterns []*Pattern) group {
	g := group{first: patterns[0].order, few: patterns}
	if p := patterns[0]; len(patterns) == 1 && p.re == nil && len(p.middle) == 0 {
		g.only = p
	}
	return g
}

// steps is what it may cost to look through the group.
func (g *group) steps() int {
	steps := 20
	for _, p := range g.few {
		steps += p.steps()
	}
	if g.bySuf != nil {
		steps += g.bySuf.steps
	}
	if g.sequences != nil {
		steps += g.sequences.cost() * MaxPatternValue
	}
	return steps
}

// steps is what it may cost to try the pattern.
func (p *Pattern) steps() int {
	switch {
	case p.re != nil:
		return p.re.cost() * MaxPatternValue
	case len(p.middle) > 0:
		return MaxPatternValue
	default:
		return 5
	}
}
