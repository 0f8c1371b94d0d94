package descriptors

import (
	"strings"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// find returns where the descriptor would lead if a descriptor before it has the same key and value, and the pattern
// that leads there, if one does. Else it returns nil.
func (to *parent) find(d *Descriptor) (first *Node, by *Pattern) {
	b := to.keys[d.Key]
	switch {
	case b == nil || d.Match.Form != "":
		return nil, nil
	case d.Value == "":
		return b.any, nil
	case !strings.Contains(d.Value, "*"):
		return b.exact[d.Value], nil
	}
	for _, p := range b.all {
		if p.re == nil && p.text == d.Value {
			return p.to, p
		}
	}
	return nil, nil
}

// merge puts what belongs to a descriptor that is there already into the first one: its own descriptors, and its limits
// if the first one has none. All else that it says does not count.
func (c *Builder) merge(to parent, first *Node, by *Pattern, d *Descriptor) (enforced levels) {
	holds := "the limits of the first one hold, and its descriptors are those of both"
	if r := first.rule; len(r.Limits) == 0 && !r.Unlimited {
		c.addLimits(to.domain, r, d)
		holds = "both are one"
	} else {
		c.checkLimits(d)
	}
	c.Tolerate(d.At, holds,
		"%s is already at %s; put what belongs to it in one place", first.rule.Path, first.rule.Source)
	if len(first.rule.Limits) > 0 && first.rule.Mode != limiter.Shadow {
		enforced = 1
	}
	for _, child := range d.Descriptors {
		r := first.rule
		enforced |= c.descriptor(parent{first, to.domain, r.Path, r.depth, r.levels}, child).below()
	}
	if by != nil {
		by.enforced |= enforced
	}
	return enforced
}
