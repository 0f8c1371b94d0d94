package descriptors

import (
	"slices"
	"strings"
)

// affixes finds the groups of all patterns whose fixed beginning, or end, a value has. It is a radix tree, so that a look-up
// reads as much of the value as there is in the tree, and nothing twice.
type affixes struct {
	nodes  []affix // the root is the first; the children of a node are side by side, by their first byte
	groups []group
}

type affix struct {
	label    string // what leads here from the node above; of ends, from the last byte to the first
	group    int32  // -1: none
	children int32  // index of the first one
	count    int32  // of the children
}

// newAffixes builds the tree over affixes that are sorted and different. groups are theirs, in the same order.
func newAffixes(sorted []string, groups []group) *affixes {
	a := &affixes{groups: groups, nodes: make([]affix, 1, 1+len(sorted)+len(sorted)/8)}
	a.build(0, sorted, 0, 0)
	return a
}

// build makes a node of the affixes sorted[...], which agree in their first depth bytes; from is the index of the first group.
func (a *affixes) build(at int, sorted []string, from, depth int) {
	label, last := sorted[0][depth:], sorted[len(sorted)-1][depth:]
	if at == 0 {
		label = "" // the root is every value's
	}
	common := 0
	for common < min(len(label), len(last)) && label[common] == last[common] {
		common++
	}
	node := affix{label: label[:common], group: -1}
	depth += common
	if len(sorted[0]) == depth {
		node.group = int32(from) //nolint:gosec // rules are fewer
		sorted, from = sorted[1:], from+1
	}
	var starts []int
	for i := range sorted {
		if i == 0 || sorted[i][depth] != sorted[i-1][depth] {
			starts = append(starts, i)
		}
	}
	node.children, node.count = int32(len(a.nodes)), int32(len(starts)) //nolint:gosec // as above
	a.nodes[at] = node
	a.nodes = slices.Grow(a.nodes, len(starts))[:len(a.nodes)+len(starts)]
	for i, start := range starts {
		end := len(sorted)
		if i+1 < len(starts) {
			end = starts[i+1]
		}
		a.build(int(node.children)+i, sorted[start:end], from+start, depth)
	}
}

// child is the index of the node's child that begins with the byte, -1 if there is none.
func (a *affixes) child(n *affix, first byte) int {
	lo, hi := int(n.children), int(n.children+n.count)
	for lo < hi {
		middle := (lo + hi) / 2
		if a.nodes[middle].label[0] < first {
			lo = middle + 1
		} else {
			hi = middle
		}
	}
	if lo < int(n.children+n.count) && a.nodes[lo].label[0] == first {
		return lo
	}
	return -1
}

// look looks through the groups whose fixed text the value begins with.
func (a *affixes) look(s *search) {
	at, rest := 0, s.value
	for {
		n := &a.nodes[at]
		if !strings.HasPrefix(rest, n.label) {
			return
		}
		rest = rest[len(n.label):]
		if n.group >= 0 {
			s.look(&a.groups[n.group])
		}
		if rest == "" {
			return
		}
		if at = a.child(n, rest[0]); at < 0 {
			return
		}
	}
}

// lookBack looks through the groups whose fixed text the value ends with, behind its first bytes.
func (a *affixes) lookBack(s *search, first int, why purpose) {
	at, end := 0, len(s.value)
	for {
		n := &a.nodes[at]
		for i := range len(n.label) {
			if end <= first || s.value[end-1] != n.label[i] {
				return
			}
			end--
		}
		if n.group >= 0 {
			s.ends(&a.groups[n.group], why)
		}
		if end <= first {
			return
		}
		if at = a.child(n, s.value[end-1]); at < 0 {
			return
		}
	}
}

// costliest returns the groups that one value may be looked up in and that cost most, and what they cost.
func (a *affixes) costliest(cost func(*group) int) (path []int32, most int) {
	var walk func(at int, above []int32, sum int)
	walk = func(at int, above []int32, sum int) {
		n := &a.nodes[at]
		if n.group >= 0 {
			above, sum = append(above, n.group), sum+cost(&a.groups[n.group])
		}
		if sum > most {
			path, most = slices.Clone(above), sum
		}
		for i := range int(n.count) {
			walk(int(n.children)+i, above, sum)
		}
	}
	walk(0, nil, 0)
	return path, most
}
