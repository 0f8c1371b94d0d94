package descriptors

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"
)

// Blocks returns the blocks of addresses of the branch's cidr rules, sorted.
func (b *Branch) Blocks() iter.Seq2[netip.Prefix, *Pattern] {
	if b.blocks == nil {
		return func(func(netip.Prefix, *Pattern) bool) {}
	}
	return b.blocks.AllSorted()
}

// Patterns returns the branch's patterns of all kinds in file order. All blocks of one rule are one pattern.
func (b *Branch) Patterns() []*Pattern {
	all := slices.Clone(b.all)
	for _, p := range b.Blocks() {
		all = append(all, p)
	}
	slices.SortFunc(all, byOrder)
	return slices.Compact(all)
}

func byOrder(a, b *Pattern) int { return cmp.Compare(a.order, b.order) }

// Nodes returns each child node once: first for values, sorted, then for patterns, in file order, then for any value.
func (b *Branch) Nodes() (all []*Node) {
	seen := map[*Node]bool{nil: true}
	add := func(n *Node) {
		if !seen[n] {
			seen[n] = true
			all = append(all, n)
		}
	}
	for _, value := range slices.Sorted(maps.Keys(b.Values)) {
		add(b.Values[value])
	}
	for _, p := range b.Patterns() {
		add(p.To)
	}
	add(b.Any)
	return all
}

// Matches returns what an entry with this value matches, in the order in which Domain.Match tries it. Domain.Match
// takes only the first. Of each kind of pattern, Matches returns only the first pattern. A nil Branch matches nothing.
func (b *Branch) Matches(value string) (all []Match) {
	if b == nil {
		return nil
	}
	if to := b.Values[value]; to != nil {
		all = append(all, Match{"value", to})
	}
	patterns := slices.DeleteFunc([]*Pattern{b.first(value, ByText), b.first(value, ByRegex), b.block(value)},
		func(p *Pattern) bool { return p == nil })
	slices.SortFunc(patterns, byOrder)
	for _, p := range patterns {
		all = append(all, Match{p.Kind(), p.To})
	}
	if b.Any != nil {
		all = append(all, Match{"key", b.Any})
	}
	return all
}

// Match is a way in which an entry matches, and the node to which it leads.
type Match struct {
	By string // "value", "key", or a pattern's Kind
	To *Node
}

// first returns the first pattern of that kind that certainly matches the value.
func (m *matchers) first(value, kind string) *Pattern {
	var s search
	s.begin(value, 0)
	for _, p := range m.all {
		if p.Kind() == kind && len(value) >= len(p.prefix) && value[:len(p.prefix)] == p.prefix && p.decide(&s) == yes {
			return p
		}
	}
	return nil
}

// Kinds of patterns.
const (
	ByText  = "pattern" // a value with *
	ByRegex = "regex"
	ByCIDR  = "cidr"
)

// Kind returns ByText, ByRegex or ByCIDR.
func (p *Pattern) Kind() string {
	switch {
	case p.re != nil:
		return ByRegex
	case p.Text == "":
		return ByCIDR
	default:
		return ByText
	}
}
