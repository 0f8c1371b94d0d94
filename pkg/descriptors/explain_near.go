package descriptors

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// add notes something near, once.
func (e *explainer) add(kind string, r *Rule, format string, args ...any) {
	if len(e.Near) >= maxNear {
		return
	}
	n := Near{Kind: kind, Rule: r, Message: fmt.Sprintf(format, args...)}
	same := func(o Near) bool { return o.Message == n.Message || o.Rule == n.Rule && n.Rule != nil }
	if !slices.ContainsFunc(e.Near, same) {
		e.Near = append(e.Near, n)
	}
}

// nearDomains are the domains that may have been meant.
func (e *explainer) nearDomains() {
	e.nearNames("domain", "domain", "Envoy's rate limit filter sends", e.Domain, e.set.domainNames())
	for _, d := range e.set.sorted[:min(len(e.set.sorted), maxTries)] {
		if r := d.Match(e.Entries); r != nil && len(e.Entries) > 0 {
			e.add("domain_other", r, "the descriptor matches %s of domain %s", at(r), quoted(d.name))
			break
		}
	}
	if len(e.Near) == 0 {
		e.add("domain_other", nil, "%s", listed("the domains are", e.set.domainNames(), "there are no domains"))
	}
}

func (s *Set) domainNames() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, d := range s.sorted {
			if !yield(d.name) {
				return
			}
		}
	}
}

// nearKeys are the keys that may have been meant at a level.
func (e *explainer) nearKeys(n *node, i int) {
	before := len(e.Near)
	e.nearNames("key", "key", "Envoy sends", e.Entries[i].Key, maps.Keys(n.keys))
	e.nearOtherEntries()
	if len(e.Near) == before {
		e.add("key_other", nil, "%s", listed("the keys of this level are", maps.Keys(n.keys), ""))
	}
}

// nearNames are names of a kind that are like the one that was asked for.
func (e *explainer) nearNames(kind, what, sender, asked string, names iter.Seq[string]) {
	for _, name := range nearest(asked, names) {
		switch {
		case strings.TrimSpace(name) == strings.TrimSpace(asked):
			e.add(kind+"_space", nil, "there is a %s %s: spaces at the ends differ, and they count; make what %s and what the rule says the same",
				what, quoted(name), sender)
		case strings.EqualFold(name, asked):
			e.add(kind+"_case", nil, "there is a %s %s: upper and lower case differ, and they count; make what %s and what the rule says the same",
				what, quoted(name), sender)
		default:
			e.add(kind+"_near", nil, "there is a %s %s; did you mean that?", what, quoted(name))
		}
	}
}

// nearValues are the rules of a key whose values are nearest.
func (e *explainer) nearValues(n *node, entry Entry) {
	b, before := n.keys[entry.Key], len(e.Near)
	if trimmed := strings.TrimSpace(entry.Value); trimmed != entry.Value {
		if ways := n.ways(Entry{entry.Key, trimmed}); len(ways) > 0 {
			r := ways[0].to.rule
			e.add("value_space", r, "%s matches the value without the spaces at its ends, and they count", at(r))
		}
	}
	for _, value := range nearest(entry.Value, b.toldValues()) {
		r := b.exact[value].rule
		switch {
		case strings.TrimSpace(value) == strings.TrimSpace(entry.Value):
			e.add("value_space", r, "%s is for %s: spaces at the ends differ, and they count", at(r), quoted(value))
		case strings.EqualFold(value, entry.Value):
			e.add("value_case", r, "%s is for %s: upper and lower case differ, and they count", at(r), quoted(value))
		default:
			e.add("value_near", r, "%s is for %s; did you mean that?", at(r), quoted(value))
		}
	}
	if len(e.Near) == before { // else a value is nearer
		for _, p := range b.nearestPatterns(entry.Value) {
			e.add(p.by(), p.to.rule, "%s does not match, because the value %s", at(p.to.rule), p.missing(entry.Value))
		}
		e.nearBlocks(n, entry)
	}
	if len(e.Near) == before && len(b.exact) > 0 {
		e.add("value_other", nil, "%s", listed("rules of this key are for", b.toldValues(), "the values of this key's rules are hashed, and not shown"))
	}
}

// toldValues are the exact values, but for those of rules with hash_values.
func (b *branch) toldValues() iter.Seq[string] {
	return func(yield func(string) bool) {
		for value, to := range b.exact {
			if to.rule.Hashes(to.rule.depth - 1) {
				continue
			}
			if !yield(value) {
				return
			}
		}
	}
}

// maxListedNear is how many patterns, or names, of one kind are told.
const maxListedNear = 3

// nearestPatterns are the patterns and regexes that lack least of the value, in file order where they lack as much.
func (b *branch) nearestPatterns(value string) []*pattern {
	type scored struct {
		*pattern
		lacks int
	}
	var all []scored
	lower := strings.ToLower(value)
	keep := func(most int) {
		slices.SortFunc(all, func(a, b scored) int { return cmp.Or(cmp.Compare(a.lacks, b.lacks), cmp.Compare(a.order, b.order)) })
		all = all[:min(len(all), most)]
	}
	for _, p := range b.all {
		lacks := len(p.prefix) - commonFolded(lower, p.prefix, fromBegin) + len(p.suffix) - commonFolded(lower, p.suffix, fromEnd)
		if all = append(all, scored{p, lacks}); len(all) > 64 {
			keep(maxListedNear)
		}
	}
	keep(maxListedNear)
	patterns := make([]*pattern, len(all))
	for i, s := range all {
		patterns[i] = s.pattern
	}
	return patterns
}

// missing says why the value does not match.
func (p *pattern) missing(value string) string {
	folded := ""
	if lower := lowered(p); lower != nil && lower.match(strings.ToLower(value)) {
		folded = ": upper and lower case differ, and they count"
	}
	switch {
	case !strings.HasPrefix(value, p.prefix):
		return "does not begin with " + quoted(p.prefix) + folded
	case !strings.HasSuffix(value, p.suffix):
		return "does not end with " + quoted(p.suffix) + folded
	case p.re != nil:
		return "does not match as a whole the regex " + quoted(p.text)
	}
	for _, part := range p.middle {
		if !strings.Contains(value, part) {
			return "lacks " + quoted(part) + folded
		}
	}
	return "does not have the parts of " + quoted(p.text) + " one behind the other" + folded
}

// lowered is the pattern in lower case; nil for a regex.
func lowered(p *pattern) *pattern {
	if p.re != nil {
		return nil
	}
	low := newPattern(strings.ToLower(p.text), nil)
	return &low
}

// nearBlocks says why an address is in no block.
func (e *explainer) nearBlocks(n *node, entry Entry) {
	table := n.keys[entry.Key].blocks.table
	if table == nil {
		return
	}
	if host, err := netip.ParseAddrPort(entry.Value); err == nil {
		if ways := n.ways(Entry{entry.Key, host.Addr().String()}); len(ways) > 0 {
			r := ways[0].to.rule
			e.add("cidr", r, "%s matches the address without its port; send only the address", at(r))
			return
		}
	}
	addr, err := netip.ParseAddr(entry.Value)
	type block struct {
		netip.Prefix
		rule   *Rule
		common int
	}
	var nearest block
	seen := 0
	for prefix, p := range table.AllSorted() {
		if seen++; seen > maxTries {
			break
		}
		b := block{prefix, p.to.rule, commonBits(prefix.Addr(), addr.Unmap())}
		if nearest.rule == nil || b.common > nearest.common {
			nearest = b
		}
	}
	switch {
	case err != nil:
		e.add("cidr", nearest.rule, "%s matches addresses only, and the value is none", at(nearest.rule))
	default:
		e.add("cidr", nearest.rule, "%s does not match, because the address is not in %s", at(nearest.rule), nearest.Prefix)
	}
}

// commonBits is how many bits two addresses of one family begin with alike; 0 of two families.
func commonBits(a, b netip.Addr) (n int) {
	if !b.IsValid() || a.Is4() != b.Is4() {
		return 0
	}
	for n = a.BitLen(); n > 0; n-- {
		if p, err := b.Prefix(n); err == nil && p.Contains(a) {
			return n
		}
	}
	return 0
}

// nearOtherEntries looks for rules that the descriptor matches with an entry less, with one more, or in another order.
func (e *explainer) nearOtherEntries() {
	e.nearWithout()
	e.nearOrder()
	e.nearWith()
}

func (e *explainer) nearWithout() {
	for i := len(e.Entries) - 1; i >= 0 && len(e.Entries) > 1; i-- {
		without := slices.Delete(slices.Clone(e.Entries), i, i+1)
		if r := e.domain.root.match(without); r != nil && len(r.Limits) > 0 {
			e.add("extra_entry", r, "%s matches without the entry %s; do not send that, or add a level for it below the rule",
				at(r), shownEntry(e.Entries[i]))
		}
	}
}

// nearOrder looks for an order of the entries that matches.
func (e *explainer) nearOrder() {
	found := e.inOrder(&e.domain.root, nil, slices.Clone(e.Entries))
	if found == nil || slices.Equal(found, e.Entries) {
		return
	}
	names := make([]string, len(found))
	for i, entry := range found {
		names[i] = shownEntry(entry)
	}
	r := e.domain.root.match(found)
	e.add("order", r, "%s matches the same entries in another order, and the order counts; send %s", at(r), strings.Join(names, ","))
}

// inOrder puts rest behind the entries that led to the node so that they lead to a limit; nil if that does not go.
func (e *explainer) inOrder(n *node, done, rest []Entry) []Entry {
	if len(rest) == 0 && n.rule != nil && len(n.rule.Limits) > 0 {
		return done
	}
	for i := range rest {
		if e.tries++; e.tries > maxTries {
			return nil
		}
		to, _ := n.next(&rest[i], len(rest)-1)
		if to == nil {
			continue
		}
		left := slices.Delete(slices.Clone(rest), i, i+1)
		if found := e.inOrder(to, append(slices.Clip(done), rest[i]), left); found != nil {
			return found
		}
	}
	return nil
}

// nearWith looks for rules that have a level more than the descriptor.
func (e *explainer) nearWith() {
	n := &e.domain.root
	for i := 0; n != nil && i < len(e.Entries); i++ {
		for _, key := range n.sortedKeys() {
			for _, to := range n.keys[key].triable() {
				if e.tries++; e.tries > maxTries {
					return
				}
				if r := to.match(e.Entries[i:]); r != nil && len(r.Limits) > 0 {
					e.add("missing_entry", r, "%s matches with an entry %s before %s; send it as well", at(r), quoted(key), shownEntry(e.Entries[i]))
				}
			}
		}
		n, _ = n.next(&e.Entries[i], len(e.Entries)-1-i)
	}
}

// sortedKeys are the keys of the level; none if they are more than could be tried.
func (n *node) sortedKeys() []string {
	if len(n.keys) > maxTries {
		return nil
	}
	return slices.Sorted(maps.Keys(n.keys))
}

// triable are what entries of the key lead to, in the order of the rules; only that of the key alone, if the others
// are more than could be tried.
func (b *branch) triable() (all []*node) {
	if len(b.by)+len(b.exact)+b.order <= maxTries {
		values := slices.Sorted(maps.Keys(b.exact))
		for _, v := range values {
			all = append(all, b.exact[v])
		}
		for _, p := range b.all {
			all = append(all, p.to)
		}
		for _, form := range slices.Sorted(maps.Keys(b.by)) {
			all = append(all, b.by[form])
		}
	}
	if b.any != nil {
		all = append(all, b.any)
	}
	return all
}

// nearPrecedence looks for rules that would match the whole descriptor, had another rule not gone first.
func (e *explainer) nearPrecedence() {
	for i, others := range e.others {
		for _, w := range others {
			if r := w.to.match(e.Entries[i+1:]); r != nil && len(r.Limits) > 0 {
				first := e.Levels[i].Rule
				e.add("precedence", r, "%s would match the whole descriptor, but for %s the rule %s goes first, and a choice is never taken back; "+
					"write the levels below that rule, too", at(r), shownEntry(e.Entries[i]), at(first))
			}
		}
	}
}

// nearDeeper are rules with limits right below the node.
func (e *explainer) nearDeeper(n *node) {
	told := 0
	for _, key := range n.sortedKeys() {
		for _, to := range n.keys[key].triable() {
			if len(to.rule.Limits) > 0 {
				if told++; told > maxListedNear {
					return
				}
				e.add("deeper", to.rule, "%s has a limit, for descriptors that go on with the key %s; send it as well, or write a rate_limit at %s",
					at(to.rule), quoted(key), n.rule.Source)
			}
		}
	}
}
