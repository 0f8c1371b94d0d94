package descriptors

import (
	"maps"
	"slices"
	"strings"
)

// checkReplaces checks that every replaced name is one of the domain's limits, and that no limit replaces
// itself by way of others: each would drop the next, and nothing would be left.
func (c *Builder) checkReplaces(d *domain) {
	search := cycles{Builder: c, edges: map[string][]Text{}, state: map[string]visit{}}
	known := slices.Sorted(maps.Keys(d.named))
	for _, r := range d.replaces {
		switch {
		case !d.named[r.of.Text] && c.incomplete:
		case !d.named[r.of.Text]:
			c.Tolerate(r.of.At, "it replaces nothing",
				"replaces %s, but no limit of domain %s has that name; %s", r.of.Text, d.name, nameHint(r.of.Text, known))
		case r.by != "" && r.by != r.of.Text: // itself: the reader reports it
			search.edges[r.by] = append(search.edges[r.by], r.of)
		}
	}
	for _, name := range known {
		search.from(name)
	}
}

func nameHint(name string, known []string) string {
	if near := didYouMean(name, known); near != "" {
		return near
	}
	if len(known) == 0 {
		return "give the limit that it replaces a name"
	}
	const shown = 10
	if len(known) > shown {
		return "its names are " + strings.Join(known[:shown], ", ") + "..."
	}
	return "its names are " + strings.Join(known, ", ")
}

// cycles looks for names that replace themselves by way of others.
type cycles struct {
	*Builder
	edges map[string][]Text
	state map[string]visit
	path  []string
}

type visit uint8

const (
	unseen visit = iota
	open         // on the path
	done
)

func (s *cycles) from(name string) {
	if s.state[name] != unseen {
		return
	}
	s.state[name] = open
	s.path = append(s.path, name)
	for _, to := range s.edges[name] {
		if s.state[to.Text] == open {
			cycle := append(slices.Clone(s.path[slices.Index(s.path, to.Text):]), to.Text)
			s.Tolerate(to.At, "a request that matches all of them has none of them",
				"replaces goes in a circle, so that none of these limits would be left: %s; remove one of them from replaces",
				strings.Join(cycle, " replaces "))
		}
		s.from(to.Text)
	}
	s.path = s.path[:len(s.path)-1]
	s.state[name] = done
}
