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
	distances := make(map[named]int, len(names))
	for _, n := range names {
		distances[n] = words.Distance(compared(asked), compared(n.name))
	}
	slices.SortFunc(names, func(a, b named) int {
		return cmp.Or(cmp.Compare(distances[a], distances[b]), cmp.Compare(a.name, b.name))
	})
	var texts []string
	for _, n := range names[:min(len(names), maxNearest)] {
		texts = append(texts, located(quotedShort(n.name), n.source))
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
