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

	steps     int    // what one value may cost
	costliest string // the text whose group costs that, together with those of the shorter texts
}

// target is a group of affixes, and what it has for only, which is most often all of it. -1 stands for no group.
type target struct {
	only      *Pattern
	group, up int32
}

// newAffixes makes the index of these texts, which are different, and sorted by what they begin with, or end with.
func newAffixes(texts []string, groups []group, byEnd bool) *affixes {
	a := &affixes{groups: groups, byEnd: byEnd, empty: target{group: -1, up: -1}}
	steps := make([]int, len(texts))
	for i, text := range texts {
		up := int32(i) - 1
		for up >= 0 && (len(texts[up]) > len(text) || a.part(text, len(texts[up])) != texts[up]) {
			up = groups[up].up
		}
		groups[i].up = up
		if steps[i] = groups[i].steps(); up >= 0 {
			steps[i] += steps[up]
		}
		if steps[i] > a.steps {
			a.steps, a.costliest = steps[i], text
		}
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
			if a.by == nil {
				a.by = make(map[string]target, len(texts))
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
