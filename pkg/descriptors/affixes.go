package descriptors

import (
	"maps"
	"slices"
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
