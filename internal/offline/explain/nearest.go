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
	maxNearest  = 3  // names
	maxCompared = 32 // bytes of a name
)

// named is a name and the position of its rule, which may be empty.
type named struct{ name, source string }

// nearest lists up to three of the names, those most like the text that was asked for first, each with its position:
// `"gold" (rules.yaml:9), "silver" (rules.yaml:12) and more`. Case does not count. The order of the names does not
// matter.
func nearest(asked string, names []named) string {
	type candidate struct {
		distance int
		named
	}
	order := func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.name, b.name))
	}
	asked = compared(asked)
	best := make([]candidate, 0, maxNearest+1) // in order
	for _, n := range names {
		c := candidate{words.Distance(asked, compared(n.name)), n}
		if i, _ := slices.BinarySearchFunc(best, c, order); i < maxNearest {
			best = slices.Insert(best, i, c)[:min(len(best)+1, maxNearest)]
		}
	}
	var texts []string
	for _, c := range best {
		texts = append(texts, located(quotedShort(c.name), c.source))
	}
	text := strings.Join(texts, ", ")
	if len(names) > maxNearest {
		text += " and more"
	}
	return text
}

// compared is what of a name is compared: long ones would take long.
func compared(name string) string { return strings.ToLower(name[:min(len(name), maxCompared)]) }

// domainNames returns the names of the domains.
func domainNames(s *descriptors.Set) (names []named) {
	for _, d := range s.Domains() {
		names = append(names, named{d.Name(), ""})
	}
	return names
}

// keys returns the keys of the node.
func keys(n *descriptors.Node) (names []named) {
	for key := range n.Keys {
		names = append(names, named{key, ""})
	}
	return names
}

// values returns the values, patterns and blocks that the rules of entry i's key match, with their positions, but not
// those of rules with hash_values.
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

// listed is the text of nearest after a verb, or another text if there are no names.
func listed(verb, names, none string) string {
	if names == "" {
		return none
	}
	return fmt.Sprintf("%s %s", verb, names)
}
