package descriptors

import (
	"cmp"
	"slices"
	"strings"
)

// maxMatchSteps bounds the cost of matching one value at one level, in steps of about half a nanosecond. It allows
// about 30 regexes with the same fixed beginning and end. Compiling a set checks it.
const maxMatchSteps = 130_000

// finishBranch builds the index of a branch's patterns once all are added, and does the checks that need the index.
func (c *Builder) finishBranch(b *Branch) {
	if len(b.all) == 0 {
		return
	}
	if b.every != nil && b.Any != nil { // b.every followed by another pattern is an error, reported below
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
			"too many patterns and regexes of this key begin and end with the same fixed text, so that matching one value may "+
				"take %d steps, and at most %d are allowed; begin or end %s with different text, or write one regex for several",
			b.index.steps, maxMatchSteps, b.all[last].To.Rule.Path)
		b.positions = nil
		return // each search below would take as many steps
	}
	for i, p := range b.all {
		if c.Rest() != nil {
			return
		}
		if p.re != nil {
			continue
		}
		// The text of p is itself a value that p matches. If an earlier pattern matches this text, in which * is an ordinary
		// character that no literal part contains, it matches every value that p matches.
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

// index builds the index of the patterns by their prefixes or, with byEnd, by their suffixes.
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

// compareEnds compares two texts from their last byte to their first.
func compareEnds(a, b string) int {
	for i := range min(len(a), len(b)) {
		if x, y := a[len(a)-1-i], b[len(b)-1-i]; x != y {
			return cmp.Compare(x, y)
		}
	}
	return cmp.Compare(len(a), len(b))
}

// group builds the group of patterns with the same prefix, which are in file order.
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

// newGroup returns a group whose patterns, which are in file order, are tried one by one.
func newGroup(patterns []*Pattern) group {
	g := group{first: patterns[0].order, few: patterns}
	if p := patterns[0]; len(patterns) == 1 && p.re == nil && len(p.middle) == 0 {
		g.only = p
	}
	return g
}

// steps returns the maximum cost of searching the group, in steps.
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

// steps returns the maximum cost of trying the pattern, in steps.
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
