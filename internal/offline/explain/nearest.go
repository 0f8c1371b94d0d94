package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/words"
)

// Bounds of nearest.
const (
	maxNearest  = 3  // number of names
	maxCompared = 32 // number of bytes of a name
)

// named is a name and the position of its rule, if it has one.
type named struct{ name, source string }

// nearest returns up to three of the names, in descending order of similarity to asked, with their positions: `"gold"
// (rules.yaml:9), "silver" (rules.yaml:12) and more`. It ignores case and the order of names.
func nearest(asked string, names []named) string {
	type candidate struct {
		distance int
		named
	}
	order := func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.name, b.name))
	}
	asked = compared(asked)
	best := make([]candidate, 0, maxNearest+1) // most similar first
	for _, n := range names {
		c := candidate{words.Distance(asked, compared(n.name)), n}
		if i, _ := slices.BinarySearchFunc(best, c, order); i < maxNearest {
			best = slices.Insert(best, i, c)[:min(len(best)+1, maxNearest)]
		}
	}
	var texts []string
	for _, c := range best {
		texts = append(texts, descriptors.Located(quotedShort(c.name), c.source))
	}
	text := strings.Join(texts, ", ")
	if len(names) > maxNearest {
		text += " and more"
	}
	return text
}

// compared returns the part of a name to compare, which is bounded because comparing long names takes long.
func compared(name string) string { return strings.ToLower(name[:min(len(name), maxCompared)]) }

// domainNames returns the names of all domains.
func domainNames(s *descriptors.Set) (names []named) {
	for _, d := range s.Domains() {
		names = append(names, named{d.Name(), ""})
	}
	return names
}

// keys returns the keys below the node.
func keys(n *descriptors.Node) (names []named) {
	for key := range n.Keys {
		names = append(names, named{key, ""})
	}
	return names
}

// values returns the values, patterns and blocks of entry i's key, with positions, but not hashed values.
func values(b *descriptors.Branch, i int) (names []named) {
	add := func(name string, r *descriptors.Rule) {
		if !r.Hashes(i) {
			names = append(names, named{name, r.Source})
		}
	}
	for value, to := range b.Values {
		add(value, to.Rule)
	}
	for _, p := range b.Patterns() {
		if p.Kind() != descriptors.ByCIDR {
			add(p.Text, p.To.Rule)
		}
	}
	for block, p := range b.Blocks() {
		add(block.String(), p.To.Rule)
	}
	return names
}

// listed returns verb and names, or none if there are no names.
func listed(verb, names, none string) string {
	if names == "" {
		return none
	}
	return fmt.Sprintf("%s %s", verb, names)
}
