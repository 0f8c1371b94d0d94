package descriptors

import (
	"errors"
	"net/netip"
	"strings"

	"github.com/gaissmai/bart"

	"github.com/weir-ratelimit/weir/internal/words"
)

// insert adds n to the branch of the descriptor's key and value. For a pattern or regex it returns the Pattern.
func (c *Builder) insert(to parent, d *Descriptor, n *Node) (p *Pattern) {
	if to.Keys == nil {
		to.Keys = map[string]*Branch{}
	}
	b := to.Keys[d.Key]
	if b == nil {
		b = &Branch{matchers: &noMatchers}
		to.Keys[d.Key] = b
	}
	switch {
	case d.Match.Form != "":
		p = c.insertForm(b, d, n)
	case d.Value == "":
		if b.Any != nil {
			c.alreadyThere(d.At, b.Any)
			return nil
		}
		b.Any = n
	case strings.Contains(d.Value, "*"):
		p = c.insertPattern(b, d, n)
	default:
		if first := b.addExact(d.Value, n); first != nil {
			c.alreadyThere(d.At, first)
		}
	}
	return p
}

// addExact adds the value. If the value exists already, addExact returns its node.
func (b *Branch) addExact(value string, n *Node) (first *Node) {
	if first := b.Values[value]; first != nil {
		return first
	}
	if b.Values == nil {
		b.Values = map[string]*Node{}
	}
	b.Values[value] = n
	return nil
}

// open gives the branch matchers of its own.
func (c *Builder) open(b *Branch) {
	if b.matchers == &noMatchers {
		b.matchers = &matchers{by: map[string]*Node{}}
		c.branches = append(c.branches, b)
	}
}

// addPattern appends a pattern or regex, which is written at value, to the branch's patterns.
func (c *Builder) addPattern(b *Branch, p *Pattern, descriptor, value Position) {
	c.open(b)
	p.order = b.next()
	b.all, b.positions = append(b.all, p), append(b.positions, written{c.at(descriptor), c.at(value)})
}

// insertForm adds n for the descriptor's values, blocks or regex. For a regex it returns the Pattern.
func (c *Builder) insertForm(b *Branch, d *Descriptor, n *Node) (p *Pattern) {
	if len(d.Match.Items) == 0 {
		return nil // checkDescriptor reports it
	}
	shared := d.Match.shared()
	if first := b.by[shared]; first != nil {
		c.alreadyThere(d.At, first)
		return nil
	}
	c.open(b)
	b.by[shared] = n
	if all := b.every; all != nil && (d.Match.Form == FormCIDR || d.Match.Form == FormRegex) {
		c.Errorf(d.Match.At, "%s is never reached: %s at %s matches every value; move it up, before that one",
			d.Match.Form, all.Text, all.To.Rule.Source)
		return nil
	}
	switch d.Match.Form {
	case FormValues:
		c.insertValues(b, d.Match.Items, n)
	case FormFile:
		c.insertValues(b, d.Match.Listed, n)
	case FormCIDR:
		c.insertBlocks(b, d, n)
	case FormRegex:
		p = c.insertRegex(b, d, n)
	default:
	}
	return p
}

func (c *Builder) insertValues(b *Branch, values []Text, n *Node) {
	for _, v := range values {
		if c.Rest() != nil {
			return
		}
		if v.Text == "" { // possible in a Go program
			c.Errorf(v.At, "an item of values is empty; remove it")
			continue
		}
		if strings.Contains(v.Text, "*") {
			c.Errorf(v.At,
				"%s contains *, which is a wildcard only in value; write a descriptor with value: for it",
				words.Shown(v.Text))
			continue
		}
		if first := b.addExact(v.Text, n); first != nil {
			c.Errorf(v.At,
				"%s is already matched by %s at %s; remove one of the two", words.Shown(v.Text), first.Rule.Path, first.Rule.Source)
		}
	}
}

// insertBlocks adds all blocks of d as one pattern.
func (c *Builder) insertBlocks(b *Branch, d *Descriptor, n *Node) {
	p := &Pattern{To: n, order: b.next()}
	for _, item := range d.Match.Items {
		prefix, ok := c.prefix(item)
		if !ok {
			continue
		}
		if b.blocks == nil {
			b.blocks = &bart.Table[*Pattern]{}
		}
		if first, ok := b.blocks.Get(prefix); ok {
			c.Errorf(item.At,
				"%s is already matched by %s at %s; remove one of the two", prefix, first.To.Rule.Path, first.To.Rule.Source)
			continue
		}
		b.blocks.Insert(prefix, p)
	}
}

func (c *Builder) insertRegex(b *Branch, d *Descriptor, n *Node) *Pattern {
	text := d.Match.Items[0]
	if c.regexes > maxRegexesWork {
		return nil // already reported
	}
	var work int
	p, err := newRegex(text.Text, n, &work)
	if c.regexes += work; c.regexes > maxRegexesWork {
		err = errors.New("regex: the regexes up to here take too long to compile; repeat less in them, or write fewer")
	}
	if err != nil {
		c.Errorf(text.At, "%s", err)
		return nil
	}
	c.addPattern(b, p, d.At, text.At)
	return p
}

func (b *Branch) next() int {
	b.order++
	return b.order
}

func (c *Builder) alreadyThere(at Position, first *Node) {
	c.Errorf(at, "%s is already given at %s; merge the two descriptors", first.Rule.Path, first.Rule.Source)
}

// insertPattern adds a pattern to the branch. finishBranch checks whether an earlier pattern matches all its values.
func (c *Builder) insertPattern(b *Branch, d *Descriptor, n *Node) *Pattern {
	p := newPattern(d.Value, n)
	c.addPattern(b, p, d.At, d.ValueAt)
	if b.every == nil && strings.Trim(p.Text, "*") == "" {
		b.every = p
	}
	return p
}

// prefix parses a block of `cidr`.
func (c *Builder) prefix(p Text) (prefix netip.Prefix, ok bool) {
	prefix, err := netip.ParsePrefix(p.Text)
	if addr, alone := netip.ParseAddr(p.Text); alone == nil && addr.Zone() == "" {
		prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	switch {
	case err != nil:
		c.Errorf(p.At,
			"cidr: %s is not an address block; write one such as 10.0.0.0/8 or 2001:db8::/32, without a port or zone",
			words.Shown(p.Text))
	case prefix.Addr().Is4In6():
		c.Errorf(p.At, "cidr: %s is an IPv4 address written as IPv6; write the IPv4 block, which matches both", p.Text)
	case prefix != prefix.Masked():
		c.Errorf(p.At, "cidr: %s has bits beyond its length; write %s", p.Text, prefix.Masked())
	default:
		return prefix, true
	}
	return prefix, false
}

// find returns the node, and the Pattern if there is one, of an earlier descriptor with the same key and value.
func (to *parent) find(d *Descriptor) (first *Node, by *Pattern) {
	b := to.Keys[d.Key]
	switch {
	case b == nil || d.Match.Form != "":
		return nil, nil
	case d.Value == "":
		return b.Any, nil
	case !strings.Contains(d.Value, "*"):
		return b.Values[d.Value], nil
	}
	for _, p := range b.all {
		if p.re == nil && p.Text == d.Value {
			return p.To, p
		}
	}
	return nil, nil
}

// merge adds the descriptors of a repeated descriptor to the first descriptor, and its limits if the first has none.
func (c *Builder) merge(to parent, first *Node, by *Pattern, d *Descriptor) (enforced levels) {
	holds := "the limits of the first one apply, with the descriptors of both"
	if r := first.Rule; len(r.Limits) == 0 && !r.Unlimited {
		c.addLimits(to.domain, r, d)
		holds = "both count as one"
	} else {
		c.checkLimits(d)
	}
	c.Tolerate(d.At, holds,
		"%s is already given at %s; merge the two descriptors", first.Rule.Path, first.Rule.Source)
	return c.below(to, first, by, d)
}
