package descriptors

// node is one place in a domain's tree: what the entries so far mean, and where the next entry leads.
type node struct {
	rule *Rule // nil at the root
	keys map[string]*branch
}

// branch is where an entry of one key leads: by its exact value, else by the first pattern, be it one with *, a
// regex or a block of addresses, else by the key.
type branch struct {
	*matchers

	exact map[string]*node
	any   *node
}

// matchers are a branch's patterns of all kinds. Few branches have some: the others share noMatchers, for there may be a
// hundred thousand of them.
type matchers struct {
	patterns patterns // with *
	regexes  patterns
	blocks   blocks

	order int              // how many there are
	by    map[string]*node // as a shared counter's key shows them
}

var noMatchers matchers

// Match returns the rule that the last entry reaches, nil if there is none. Entries are matched one by one: the
// exact value goes first, then the patterns in file order (of several blocks that hold an address, the longest),
// then the key alone, and a choice is never taken back. It allocates nothing (but for the error of what looks like
// an address and is none), and takes as long with many rules as with few.
func (d *Domain) Match(entries []Entry) *Rule {
	n := &d.root
	for i := range entries {
		if n = n.next(&entries[i]); n == nil {
			return nil
		}
	}
	return n.rule
}

func (n *node) next(e *Entry) *node {
	b := n.keys[e.Key]
	if b == nil {
		return nil
	}
	if to := b.exact[e.Value]; to != nil {
		return to
	}
	best := b.patterns.match(e.Value, b.blocks.match(e.Value))
	if best = b.regexes.match(e.Value, best); best != nil {
		return best.to
	}
	return b.any
}
