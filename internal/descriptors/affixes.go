package descriptors

import (
	"slices"
)

// affixes finds all groups of patterns whose prefix (or, byEnd, suffix) a value has. A binary search over the lengths
// of these affixes finds the longest (Waldvogel et al., Scalable High Speed IP Routing Lookups, 1997), whose group
// links to the groups of shorter affixes. So the time does not grow with the number of patterns.
type affixes struct {
	groups  []group // sorted by affix; shorter affixes of an affix precede it
	lengths []int   // of the affixes, ascending, without 0
	// by has each affix, and the parts of it that the binary search tries first, with the longest affix in each part.
	by    map[string]target
	empty target // for the empty affix, which every value has
	byEnd bool

	steps     int    // maximum cost of one value
	costliest string // affix whose group and shorter affixes' groups have this cost
}

// target is a group of affixes with its `only` and `up`. -1 means no group.
type target struct {
	only      *Pattern
	group, up int32
}

// newAffixes builds the index of texts, which are distinct affixes and sorted.
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

// part returns the prefix or suffix of the text with that length.
func (a *affixes) part(text string, length int) string {
	if a.byEnd {
		return text[len(text)-length:]
	}
	return text[:length]
}

// look visits the groups whose affix the value has. value may be only the end of the searched value.
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
