package explain

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/words"
)

// Bounds of nearest.
const (
	maxNearest  = 3  // names
	maxCompared = 32 // bytes of a name, behind what it has in common with the text that was asked for
)

// nearest lists up to three of the names, those most like the text that was asked for first, each with the position of
// its rule unless that is empty: `"gold" (rules.yaml:9), "silver" (rules.yaml:12) and more`. Case does not count. The
// order of the names does not matter.
func nearest(asked string, names iter.Seq2[string, string]) string {
	type named struct {
		name, source string
		distance     int
	}
	var best []named
	more := false
	asked = strings.ToLower(asked)
	for name, source := range names {
		n := named{name, source, distance(asked, strings.ToLower(name))}
		at, _ := slices.BinarySearchFunc(best, n, func(a, b named) int {
			return cmp.Or(cmp.Compare(a.distance, b.distance), strings.Compare(a.name, b.name))
		})
		if best = slices.Insert(best, at, n); len(best) > maxNearest {
			best, more = best[:maxNearest], true
		}
	}
	texts := make([]string, len(best))
	for i, n := range best {
		texts[i] = located(quotedShort(n.name), n.source)
	}
	text := strings.Join(texts, ", ")
	if more {
		text += " and more"
	}
	return text
}

// distance is the edit distance of two names, bounded for long ones. All names are equally near to an empty one.
func distance(asked, name string) int {
	if asked == "" {
		return 0
	}
	n := 0
	for n < min(len(asked), len(name)) && asked[n] == name[n] {
		n++
	}
	asked, name = asked[n:], name[n:]
	return words.Distance(asked[:min(len(asked), maxCompared)], name[:min(len(name), maxCompared)])
}

// domainNames yields the names of the domains.
func domainNames(s *descriptors.Set) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, d := range s.Domains() {
			if !yield(d.Name(), "") {
				return
			}
		}
	}
}

// keys yields the keys of the node.
func keys(n *descriptors.Node) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for key := range n.Keys {
			if !yield(key, "") {
				return
			}
		}
	}
}

// values yields the values, patterns and blocks that the rules of entry i's key match, with their positions, but not
// those of rules with hash_values.
func values(b *descriptors.Branch, i int) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for value, to := range b.Values {
			if r := to.Rule; !r.Hashes(i) && !yield(value, r.Source) {
				return
			}
		}
		for _, p := range b.Patterns() {
			r := p.To.Rule
			if p.Kind() != descriptors.ByCIDR && !r.Hashes(i) && !yield(p.Text, r.Source) {
				return
			}
		}
		for block, p := range b.Blocks() {
			if r := p.To.Rule; !r.Hashes(i) && !yield(block.String(), r.Source) {
				return
			}
		}
	}
}

// listed is the text of nearest after a verb, or another text if there are no names.
func listed(verb, names, none string) string {
	if names == "" {
		return none
	}
	return fmt.Sprintf("%s %s", verb, names)
}
