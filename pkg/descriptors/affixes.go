package descriptors

import (
	"maps"
	"slices"
	"strings"
)

// affixes finds the groups of all patterns whose fixed beginning, or end, a value has. Few lengths are looked up one
// by one in a map, which takes as long with many patterns as with few; for many, or long ones, there is a tree.
type affixes struct {
	groups  []group
	lengths []int             // that occur, ascending, but for 0
	by      map[string]target // by beginning, or end
	empty   *target           // of the empty text, which every value begins and ends with; nil if it does not occur
	tree    *radix            // instead of by
	ends    bool
}

// target is a group of affixes, and what it has for only, which is most often all of it.
type target struct {
	only  *Pattern
	group int32
}

// Bounds of what is looked up in a map.
const (
	maxLengths     = 24
	maxAffixLength = 256 // bytes
)

// newAffixes makes the index of these texts, which are different, and sorted, or if reversed is given by
// what that makes of them.
func newAffixes(sorted []string, groups []group, reversed func(string) string) *affixes {
	a := &affixes{groups: groups, ends: reversed != nil}
	for _, text := range sorted {
		if text == "" {
			continue
		}
		if i, found := slices.BinarySearch(a.lengths, len(text)); !found {
			a.lengths = slices.Insert(a.lengths, i, len(text))
		}
	}
	if n := len(a.lengths); n > maxLengths || n > 0 && a.lengths[n-1] > maxAffixLength {
		if reversed != nil {
			for i, text := range sorted {
				sorted[i] = reversed(text)
			}
		}
		a.tree = newRadix(sorted)
		return a
	}
	a.by = make(map[string]target, len(sorted))
	for i, text := range sorted {
		a.by[text] = target{groups[i].only, int32(i)}
	}
	if t, ok := a.by[""]; ok {
		a.empty = &t
	}
	return a
}

// look looks through the groups whose fixed text the value begins with.
func (a *affixes) look(s *search) {
	if a.tree != nil {
		a.tree.look(s, a.groups)
		return
	}
	if a.empty != nil {
		a.visit(s, a.empty)
	}
	for _, n := range a.lengths {
		if n > len(s.value) {
			return
		}
		if t, ok := a.by[s.value[:n]]; ok {
			a.visit(s, &t)
		}
	}
}

// visit decides about the patterns of a group whose fixed beginning the value has.
func (a *affixes) visit(s *search, t *target) {
	if t.only != nil {
		s.tryOnly(t.only)
	} else {
		s.look(&a.groups[t.group])
	}
}

// lookBack looks through the groups whose fixed text the value ends with, behind its first bytes.
func (a *affixes) lookBack(s *search, first int, why purpose) {
	if a.tree != nil {
		a.tree.lookBack(s, a.groups, first, why)
		return
	}
	if a.empty != nil {
		a.visitBack(s, a.empty, why)
	}
	for _, n := range a.lengths {
		if n > len(s.value)-first {
			return
		}
		if t, ok := a.by[s.value[len(s.value)-n:]]; ok {
			a.visitBack(s, &t, why)
		}
	}
}

// visitBack does with a group whose fixed end the value has what the look is for.
func (a *affixes) visitBack(s *search, t *target, why purpose) {
	if t.only != nil && why == toDecide {
		s.tryOnly(t.only)
	} else {
		s.ends(&a.groups[t.group], why)
	}
}

// costliest returns the groups that one value may be looked up in and that cost most, and what they cost.
func (a *affixes) costliest(cost func(*group) int) (path []int32, most int) {
	costs := make([]int, len(a.groups))
	for i := range a.groups {
		costs[i] = cost(&a.groups[i])
	}
	if a.tree != nil {
		return a.tree.costliest(costs)
	}
	// A text that another one begins, or ends, with is looked up with that one.
	var all []int32
	for _, text := range slices.Sorted(maps.Keys(a.by)) {
		all = a.within(all[:0], text)
		sum := 0
		for _, i := range all {
			sum += costs[i]
		}
		if sum > most {
			path, most = slices.Clone(all), sum
		}
	}
	return path, most
}

// within appends the groups whose text the text begins with, or ends with.
func (a *affixes) within(all []int32, text string) []int32 {
	if a.empty != nil {
		all = append(all, a.empty.group)
	}
	for _, n := range a.lengths {
		if n > len(text) {
			break
		}
		part := text[:n]
		if a.ends {
			part = text[len(text)-n:]
		}
		if t, ok := a.by[part]; ok {
			all = append(all, t.group)
		}
	}
	return all
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

// costliest is affixes.costliest.
func (a *radix) costliest(costs []int) (path []int32, most int) {
	var walk func(at int, above []int32, sum int)
	walk = func(at int, above []int32, sum int) {
		n := &a.nodes[at]
		if n.group >= 0 {
			above, sum = append(above, n.group), sum+costs[n.group]
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
