package explain

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"github.com/weir-ratelimit/weir/internal/words"
)

// maxListedNear is how many patterns, or names, of one kind an explanation lists.
const maxListedNear = 3

// Bounds of a search for names that are like another one.
const (
	maxCompared = 64  // bytes of a name that are looked at from either end
	maxMeasured = 32  // names whose distance is measured
	maxDistance = 256 // bytes of a name whose distance is measured
)

// nearest are up to three names that are like the one that was asked for, the nearest first. It looks once at each
// name, and closely only at the few that begin and end like it. The order of names plays no role.
func nearest(asked string, names iter.Seq[string]) []string {
	type scored struct {
		name   string
		differ int
	}
	lower := strings.ToLower(strings.TrimSpace(asked))
	var all []scored
	keep := func(most int) {
		slices.SortFunc(all, func(a, b scored) int {
			return cmp.Or(cmp.Compare(a.differ, b.differ), cmp.Compare(a.name, b.name))
		})
		all = all[:min(len(all), most)]
	}
	var worst scored // that is kept, once there are enough
	for name := range names {
		s := scored{name, atMostApart(lower, name)}
		if worst.differ > 0 && (s.differ > worst.differ || s.differ == worst.differ && s.name > worst.name) {
			continue
		}
		if all = append(all, s); len(all) > 4*maxMeasured {
			keep(maxMeasured)
			worst = all[maxMeasured-1]
		}
	}
	keep(maxMeasured)
	bound := 1 + max(1, (len(lower)+2)/3) // two letters swapped in a word of four are two edits
	if len(lower) < 2 {
		bound = 1 // any other letter would do
	}
	all = slices.DeleteFunc(all, func(s scored) bool {
		return s.differ >= bound && (len(s.name) > maxDistance || len(lower) > maxDistance)
	})
	for i := range all {
		name := strings.ToLower(strings.TrimSpace(all[i].name))
		if len(name) <= maxDistance && len(lower) <= maxDistance {
			all[i].differ = words.Distance(lower, name)
		}
	}
	all = slices.DeleteFunc(all, func(s scored) bool { return s.differ >= bound })
	keep(maxListedNear)
	found := make([]string, len(all))
	for i, s := range all {
		found[i] = s.name
	}
	return found
}

// atMostApart is how many bytes two names are apart at most: what is between the beginning and the end that they
// share, upper and lower case aside. Of long names only the ends count.
func atMostApart(lower, name string) int {
	name = strings.TrimSpace(name)
	n := commonFolded(lower, name, fromBegin)
	m := commonFolded(lower[n:], name[n:], fromEnd)
	return max(len(lower), len(name)) - n - m
}

func fromBegin(s string, i int) byte { return s[i] }
func fromEnd(s string, i int) byte   { return s[len(s)-1-i] }

// commonFolded is how many bytes both have in common, up to a bound. The first is in lower case, and the second is
// compared as if it were.
func commonFolded(lower, name string, get func(string, int) byte) (n int) {
	for n < min(len(lower), len(name), maxCompared) && get(lower, n) == lowerASCII(get(name, n)) {
		n++
	}
	return n
}

func lowerASCII(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

// listed are the first few names in their order, after a verb: "the domains are a, b and more".
func listed(verb string, names iter.Seq[string], none string) string {
	var first []string
	more := false
	for name := range names {
		first = append(first, name)
		if len(first) > 4*maxListedNear {
			slices.Sort(first)
			first, more = first[:maxListedNear], true
		}
	}
	slices.Sort(first)
	if len(first) == 0 {
		return none
	}
	if len(first) > maxListedNear {
		first, more = first[:maxListedNear], true
	}
	for i := range first {
		first[i] = quotedShort(first[i])
	}
	text := verb + " " + strings.Join(first, ", ")
	if more {
		text += " and more"
	}
	return text
}
