package descriptors

import (
	"slices"
	"strings"
)

// affixes finds the groups of all patterns whose fixed beginning, or end, a value has. Few lengths are looked up one
// by one in a map, which takes as long with many patterns as with few; for many, or long ones, there is a tree.
type affixes struct {
	groups  []group
	lengths []int            // that occur, ascending
	by      map[string]int32 // groups by beginning, or end
	tree    *radix           // instead of by

	costliest []int32 // the groups that one value may be looked up in and that cost most
	steps     int     // what these cost
}

// Bounds of what is looked up in a map.
const (
	maxLengths     = 24
	maxAffixLength = 256 // bytes
)

// newAffixes makes the index of the beginnings of these groups, or of their ends. The texts are different, and sorted,
// ends from their last byte to their first.
func newAffixes(sorted []string, groups []group, areEnds bool) *affixes {
	a := &affixes{groups: groups}
	read := sorted // as a look-up reads them
	if areEnds {
		var memory texts
		read = make([]string, len(sorted))
		for i, text := range sorted {
			read[i] = memory.reversed(text)
		}
	}
	a.tree = newRadix(read)
	a.costliest, a.steps = a.tree.costliest(groups)
	for _, text := range sorted {
		if i, found := slices.BinarySearch(a.lengths, len(text)); !found {
			a.lengths = slices.Insert(a.lengths, i, len(text))
		}
	}
	if n := len(a.lengths); n > maxLengths || a.lengths[n-1] > maxAffixLength {
		return a
	}
	a.tree, a.by = nil, make(map[string]int32, len(sorted))
	for i, text := range sorted {
		a.by[text] = int32(i)
	}
	return a
}

// look looks through the groups whose fixed text the value begins with.
func (a *affixes) look(s *search) {
	if a.tree != nil {
		a.tree.look(s, a.groups)
		return
	}
	for _, n := range a.lengths {
		if n > len(s.value) {
			return
		}
		if i, ok := a.by[s.value[:n]]; ok {
			s.look(&a.groups[i])
		}
	}
}

// lookBack looks through the groups whose fixed text the value ends with, behind its first bytes.
func (a *affixes) lookBack(s *search, first int, why purpose) {
	if a.tree != nil {
		a.tree.lookBack(s, a.groups, first, why)
		return
	}
	for _, n := range a.lengths {
		if n > len(s.value)-first {
			return
		}
		if i, ok := a.by[s.value[len(s.value)-n:]]; ok {
			s.ends(&a.groups[i], why)
		}
	}
}

// radix is a radix tree over the fixed beginnings, or ends, of many lengths: a look-up reads as much of the value as
// there is in the tree, and no byte more than one time.
type radix struct {
	nodes  []radixNode // the root is the first; the children of a node are side by side, by their first byte
	firsts []byte      // by node: the first byte of what leads there from the node above
}

type radixNode struct {
	label    string // what follows the first byte; of ends, from the last byte to the first
	group    int32  // -1: none
	children int32  // index of the first one
	count    int32  // of the children
}

// newRadix builds the tree over texts that are sorted and different, and the groups of that index.
func newRadix(sorted []string) *radix {
	a := &radix{nodes: make([]radixNode, 1, 1+len(sorted)+len(sorted)/8)}
	a.build(0, sorted, 0, 0)
	a.firsts = make([]byte, len(a.nodes))
	for i := range a.nodes[1:] {
		n := &a.nodes[1+i]
		a.firsts[1+i], n.label = n.label[0], n.label[1:]
	}
	return a
}

// build makes a node of the texts sorted[...], which agree in their first depth bytes; from is the index of the first
// group.
func (a *radix) build(at int, sorted []string, from, depth int) {
	label, last := sorted[0][depth:], sorted[len(sorted)-1][depth:]
	if at == 0 {
		label = "" // the root is every value's
	}
	common := 0
	for common < min(len(label), len(last)) && label[common] == last[common] {
		common++
	}
	node := radixNode{label: label[:common], group: -1}
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

// child is the index of the node's child that begins with the byte, 0 if there is none.
func (a *radix) child(n *radixNode, first byte) int {
	lo, hi := int(n.children), int(n.children+n.count)
	for hi-lo > 16 {
		if middle := (lo + hi) / 2; a.firsts[middle] <= first {
			lo = middle
		} else {
			hi = middle
		}
	}
	for i, c := range a.firsts[lo:hi] {
		if c == first {
			return lo + i
		}
	}
	return 0
}

// look looks through the groups whose fixed text the value begins with.
func (a *radix) look(s *search, groups []group) {
	at, rest := 0, s.value
	for {
		n := &a.nodes[at]
		if !strings.HasPrefix(rest, n.label) {
			return
		}
		rest = rest[len(n.label):]
		if n.group >= 0 {
			s.look(&groups[n.group])
		}
		if rest == "" {
			return
		}
		if at = a.child(n, rest[0]); at == 0 {
			return
		}
		rest = rest[1:]
	}
}

// lookBack looks through the groups whose fixed text the value ends with, behind its first bytes.
func (a *radix) lookBack(s *search, groups []group, first int, why purpose) {
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
			s.ends(&groups[n.group], why)
		}
		if end <= first {
			return
		}
		if at = a.child(n, s.value[end-1]); at == 0 {
			return
		}
		end--
	}
}

// costliest returns the groups that one value may be looked up in and that cost most, and what they cost.
func (a *radix) costliest(groups []group) (path []int32, most int) {
	var walk func(at int, above []int32, sum int)
	walk = func(at int, above []int32, sum int) {
		n := &a.nodes[at]
		if n.group >= 0 {
			above, sum = append(above, n.group), sum+groups[n.group].steps()
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
