package descriptors

import (
	"cmp"
	"maps"
	"slices"
)

// EachValue calls do with every value that the rules name whole, in value, values or values_file, and its entry's key.
func (s *Set) EachValue(do func(key, value string)) {
	for _, d := range s.sorted {
		d.root.eachBranch("", func(_, key string, b *branch) {
			for value := range b.exact {
				do(key, value)
			}
		})
	}
}

// Patterns are the paths of the rules that match by *, regex or cidr, in no order.
func (s *Set) Patterns() (paths []string) {
	for _, d := range s.sorted {
		d.root.eachBranch("", func(_, _ string, b *branch) {
			for _, p := range b.ordered() {
				paths = append(paths, p.to.rule.Path)
			}
		})
	}
	return paths
}

// eachBranch calls do with every branch below the node, and the path of the rule that it is below.
func (n *node) eachBranch(path string, do func(path, key string, b *branch)) {
	for _, key := range slices.Sorted(maps.Keys(n.keys)) {
		b := n.keys[key]
		do(path, key, b)
		for _, to := range b.nodes() {
			to.eachBranch(to.rule.Path, do)
		}
	}
}

// nodes are where the branch leads, each once.
func (b *branch) nodes() (all []*node) {
	seen := map[*node]bool{}
	add := func(n *node) {
		if n != nil && !seen[n] {
			seen[n] = true
			all = append(all, n)
		}
	}
	for _, n := range b.exact {
		add(n)
	}
	for _, p := range b.ordered() {
		add(p.to)
	}
	add(b.any)
	return all
}

// ordered are the branch's patterns in file order, the blocks of one descriptor as one.
func (b *branch) ordered() []*pattern {
	all := slices.Clone(b.all)
	if b.blocks.table != nil {
		for _, p := range b.blocks.table.All() {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, byOrder)
	return slices.Compact(all)
}

func byOrder(a, b *pattern) int { return cmp.Compare(a.order, b.order) }

// isBlock says that the pattern is the blocks of addresses of a descriptor.
func (p *pattern) isBlock() bool { return p.re == nil && p.text == "" }
