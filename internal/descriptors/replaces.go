package descriptors

import (
	"maps"
	"slices"
	"strings"

	"github.com/weir-ratelimit/weir/internal/words"
)

// checkReplaces checks that every replaced name is a limit of the domain, and that the limits do not replace each other
// in a cycle, which would leave none of them.
func (c *Builder) checkReplaces(d *domain) {
	known := slices.Sorted(maps.Keys(d.named))
	edges := map[string][]Text{}
	for _, r := range d.replaces {
		switch {
		case !d.named[r.of.Text] && c.incomplete:
		case !d.named[r.of.Text]:
			c.Tolerate(r.of.At, "it replaces nothing",
				"replaces %s, but no limit of domain %s has that name; %s", r.of.Text, d.name, nameHint(r.of.Text, known))
		case r.by != "" && r.by != r.of.Text: // checkLimit reports a limit that replaces itself
			edges[r.by] = append(edges[r.by], r.of)
		}
	}
	var path []string // names of which each replaces the next
	visited, open := map[string]bool{}, map[string]bool{}
	var visit func(name string)
	visit = func(name string) {
		if visited[name] {
			return
		}
		visited[name], open[name] = true, true
		path = append(path, name)
		for _, to := range edges[name] {
			if open[to.Text] {
				cycle := append(slices.Clone(path[slices.Index(path, to.Text):]), to.Text)
				c.Tolerate(to.At, "a request that matches all of these limits has none of them",
					"these limits replace one another, so that none would apply: %s; remove one of them from replaces",
					strings.Join(cycle, " replaces "))
			}
			visit(to.Text)
		}
		path = path[:len(path)-1]
		open[name] = false
	}
	for _, name := range known {
		visit(name)
	}
}

func nameHint(name string, known []string) string {
	if near := words.Nearest(name, known); near != "" {
		return "did you mean " + near + "?"
	}
	if len(known) == 0 {
		return "give the limit that it replaces a name"
	}
	return "its names are " + words.Shorten(strings.Join(known, ", "))
}
