package descriptors

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"
)

// Root is the top of the domain's tree, where a request's first entry is matched. It has no rule.
func (d *Domain) Root() *Node { return &d.root }

// Rule is the node's rule, nil at the top of a domain.
func (n *Node) Rule() *Rule { return n.rule }

// Len is the number of keys of entries that lead on from the node.
func (n *Node) Len() int { return len(n.keys) }

// Keys returns the keys of entries that lead on from the node, in no order.
func (n *Node) Keys() iter.Seq[string] { return maps.Keys(n.keys) }

// Branch returns where entries of the key lead, nil if the node has no such key.
func (n *Node) Branch(key string) *Branch { return n.keys[key] }

// Branches returns each branch of the node with its key, sorted by key.
func (n *Node) Branches() iter.Seq2[string, *Branch] {
	return func(yield func(string, *Branch) bool) {
		for _, key := range slices.Sorted(maps.Keys(n.keys)) {
			if !yield(key, n.keys[key]) {
				return
			}
		}
	}
}

// Len is the number of values and patterns of the branch.
func (b *Branch) Len() int { return len(b.exact) + b.order }

// Values returns the values that rules name in value, values or values_file, and where each leads, in no order.
func (b *Branch) Values() iter.Seq2[string, *Node] { return maps.All(b.exact) }

// Any is where an entry leads whose value nothing else of the branch matches, nil if nowhere.
func (b *Branch) Any() *Node { return b.any }

// Blocks returns the blocks of addresses of the branch's cidr rules, sorted.
func (b *Branch) Blocks() iter.Seq2[netip.Prefix, *Pattern] {
	if b.blocks.table == nil {
		return func(func(netip.Prefix, *Pattern) bool) {}
	}
	return b.blocks.table.AllSorted()
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

// Nodes returns where the branch leads, each node once: first by its values, sorted, then by its patterns in file
// order, then by the key alone.
func (b *Branch) Nodes() (all []*Node) {
	seen := map[*Node]bool{nil: true}
	add := func(n *Node) {
		if !seen[n] {
			seen[n] = true
			all = append(all, n)
		}
	}
	for _, value := range slices.Sorted(maps.Keys(b.exact)) {
		add(b.exact[value])
	}
	for _, p := range b.Patterns() {
		add(p.to)
	}
	add(b.any)
	return all
}

// Matches returns all that an entry of this value matches, in the order in which Domain.Match tries them: only the
// first one is taken. Of several patterns of one kind only the first is in it.
func (b *Branch) Matches(value string) (all []Match) {
	if to := b.exact[value]; to != nil {
		all = append(all, Match{"value", to})
	}
	patterns := slices.DeleteFunc([]*Pattern{b.first(value, ByText), b.first(value, ByRegex), b.blocks.match(value)},
		func(p *Pattern) bool { return p == nil })
	slices.SortFunc(patterns, byOrder)
	for _, p := range patterns {
		all = append(all, Match{p.Kind(), p.to})
	}
	if b.any != nil {
		all = append(all, Match{"key", b.any})
	}
	return all
}

// Match is what an entry matches, and where that leads.
type Match struct {
	By string // value, key, or a pattern's Kind
	To *Node
}

// first is the first pattern of that kind that is known to match the value.
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

// The kinds of patterns.
const (
	ByText  = "pattern" // a value with *
	ByRegex = "regex"
	ByCIDR  = "cidr"
)

// Kind is ByText, ByRegex or ByCIDR.
func (p *Pattern) Kind() string {
	switch {
	case p.re != nil:
		return ByRegex
	case p.text == "":
		return ByCIDR
	default:
		return ByText
	}
}

// Rule is the rule that the pattern leads to.
func (p *Pattern) Rule() *Rule { return p.to.rule }

// Text is the pattern or regex as a rule file has it, empty for blocks of addresses.
func (p *Pattern) Text() string { return p.text }
