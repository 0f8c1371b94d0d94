package descriptors

import (
	"slices"
)

// affixes finds the groups of all patterns whose fixed beginning, or end, a value has. A binary search over the lengths
// of these texts finds the longest one (Waldvogel et al., Scalable High Speed IP Routing Lookups, 1997), whose group
// leads to those of the shorter ones. So it takes as long with many patterns as with few.
type affixes struct {
	groups  []group // by their text, sorted: a text that another one begins, or ends, with is before it
	lengths []int   // of the texts, ascending, but for 0
	// by has each text, and what the search for it looks up before it: parts of it, with the longest text in them.
	by    map[string]target
	empty target // of the empty text, which every value begins and ends with
	byEnd bool
}

// target is a group of affixes, and what it has for only, which is most often all of it. -1 stands for no group.
type target struct {
	only      *Pattern
	group, up int32
}

// newAffixes makes the index of these texts, which are different, and sorted by what they begin with, or end with.
func newAffixes(texts []string, groups []group, byEnd bool) *affixes {
	a := &affixes{groups: groups, byEnd: byEnd, by: make(map[string]target, len(texts)), empty: target{group: -1, up: -1}}
	for i, text := range texts {
		up := int32(i) - 1 //nolint:gosec // rules are fewer
		for up >= 0 && (len(texts[up]) > len(text) || a.part(text, len(texts[up])) != texts[up]) {
			up = groups[up].up
		}
		groups[i].up = up
		if text == "" {
			a.empty = a.target(i)
		} else if at, found := slices.BinarySearch(a.lengths, len(text)); !found {
			a.lengths = slices.Insert(a.lengths, at, len(text))
		}
	}
	for i, text := range texts {
		for lo, hi := 0, len(a.lengths); lo < hi; {
			middle := (lo + hi) / 2
			n := a.lengths[middle]
			if n > len(text) {
				hi = middle
				continue
			}
			within := i
			for within >= 0 && len(texts[within]) > n {
				within = int(groups[within].up)
			}
			a.by[a.part(text, n)] = a.target(within)
			lo = middle + 1
		}
	}
	return a
}

func (a *affixes) target(i int) target {
	if i < 0 {
		return target{group: -1, up: -1}
	}
	return target{a.groups[i].only, int32(i), a.groups[i].up} //nolint:gosec // rules are fewer
}

// part is what a text begins with, or ends with.
func (a *affixes) part(text string, length int) string {
	if a.byEnd {
		return text[len(text)-length:]
	}
	return text[:length]
}

// look visits the groups whose fixed text the value begins with, or ends with; value may be the end of the one that is
// looked for.
func (a *affixes) look(s *search, value string, why purpose) {
	longest := a.empty
	for lo, hi := 0, len(a.lengths); lo < hi; {
		middle := (lo + hi) / 2
		var t target
		ok := a.lengths[middle] <= len(value)
		if ok {
			t, ok = a.by[a.part(value, a.lengths[middle])]
		}
		if ok {
			longest, lo = t, middle+1
		} else {
			hi = middle
		}
	}
	if longest.only != nil {
		s.tryOnly(longest.only)
	} else if longest.group >= 0 {
		s.visit(&a.groups[longest.group], why)
	}
	for i := longest.up; i >= 0; i = a.groups[i].up {
		s.visit(&a.groups[i], why)
	}
}

// costliest returns the group that costs most together with those of the shorter texts, and what all of them cost.
func (a *affixes) costliest() (group int32, most int) {
	sums := make([]int, len(a.groups))
	for i := range a.groups {
		sums[i] = a.groups[i].steps()
		if up := a.groups[i].up; up >= 0 {
			sums[i] += sums[up]
		}
		if sums[i] > most {
			group, most = int32(i), sums[i] //nolint:gosec // rules are fewer
		}
	}
	return group, most
}

// costliestPattern is the last in file order of the patterns of a group, and of those of shorter texts, that read a
// value.
func (a *affixes) costliestPattern(group int32) (last *Pattern) {
	add := func(patterns []*Pattern) {
		for _, p := range patterns {
			if (last == nil || p.order > last.order) && p.steps() >= MaxPatternValue {
				last = p
			}
		}
	}
	for i := group; i >= 0; i = a.groups[i].up {
		g := &a.groups[i]
		add(g.few)
		for _, more := range []*affixes{g.bySuf, g.tails()} {
			if more == nil {
				continue
			}
			for j := range more.groups {
				add(more.groups[j].few)
			}
		}
	}
	return last
}
