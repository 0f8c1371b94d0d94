package explain

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// add notes something near, once.
func (e *matcher) add(kind string, r *descriptors.Rule, format string, args ...any) {
	if len(e.Near) >= maxNear {
		return
	}
	n := Near{Kind: kind, Message: fmt.Sprintf(format, args...)}
	if r != nil {
		n.Rule, n.Source = r.Path, r.Source
	}
	same := func(o Near) bool {
		return o.Message == n.Message || r != nil && o.Rule == n.Rule && o.Source == n.Source
	}
	if !slices.ContainsFunc(e.Near, same) {
		e.Near = append(e.Near, n)
	}
}

// nearDomains are the domains that may have been meant.
func (e *matcher) nearDomains(asked string) {
	e.nearNames("domain", "Envoy's rate limit filter sends", asked, domainNames(e.set))
	for _, d := range e.set.Domains()[:min(len(e.set.Domains()), maxTries)] {
		if r := d.Match(e.entries); r != nil && len(e.entries) > 0 {
			e.add("domain_other", r, "the descriptor matches %s of domain %s", at(r), quotedShort(d.Name()))
			break
		}
	}
	if len(e.Near) == 0 {
		e.add("domain_other", nil, "%s", listed("the domains are", domainNames(e.set), "there are no domains"))
	}
}

func domainNames(s *descriptors.Set) iter.Seq[string] {
	var names []string
	for _, d := range s.Domains() {
		names = append(names, d.Name())
	}
	return slices.Values(names)
}

// nearKeys are the keys that may have been meant at a level.
func (e *matcher) nearKeys(n *descriptors.Node, i int) {
	before := len(e.Near)
	e.nearNames("key", "Envoy sends", e.entries[i].Key, n.Keys())
	e.nearOtherEntries()
	if len(e.Near) == before {
		e.add("key_other", nil, "%s", listed("the keys of this level are", n.Keys(), ""))
	}
}

// nearNames are names of a kind that are like the one that was asked for.
func (e *matcher) nearNames(kind, sender, asked string, names iter.Seq[string]) {
	for _, name := range nearest(asked, names) {
		how, differs := difference(name, asked)
		if differs == "" {
			e.add(kind+how, nil, "there is a %s %s; did you mean that?", kind, quotedShort(name))
			continue
		}
		e.add(kind+how, nil, "there is a %s %s%s; make what %s and what the rule says the same",
			kind, quotedShort(name), differs, sender)
	}
}

// difference is how a name that is near differs from the one that was asked for: as the end of a Near.Kind, and in
// words, empty if it is another name.
func difference(name, asked string) (kind, words string) {
	switch {
	case strings.TrimSpace(name) == strings.TrimSpace(asked):
		return "_space", ": spaces at the ends differ, and they count"
	case strings.EqualFold(name, asked):
		return "_case", ": upper and lower case differ, and they count"
	default:
		return "_near", ""
	}
}

// nearValues are the rules of entry i's key whose values are nearest.
func (e *matcher) nearValues(b *descriptors.Branch, i int) {
	entry, before := e.entries[i], len(e.Near)
	if trimmed := strings.TrimSpace(entry.Value); trimmed != entry.Value {
		if all := b.Matches(trimmed); len(all) > 0 {
			r := all[0].To.Rule()
			e.add("value_space", r, "%s matches the value without the spaces at its ends, and they count", at(r))
		}
	}
	for _, value := range nearest(entry.Value, shownValues(b, i)) {
		r := b.Matches(value)[0].To.Rule()
		how, differs := difference(value, entry.Value)
		e.add("value"+how, r, "%s is for %s%s", at(r), quotedShort(value), cmp.Or(differs, "; did you mean that?"))
	}
	if len(e.Near) == before { // else a value is nearer
		for _, p := range nearestPatterns(b, entry.Value) {
			e.add(p.Kind(), p.Rule(), "%s does not match, because the value %s", at(p.Rule()), missing(p, entry.Value))
		}
		e.nearBlocks(b, entry.Value)
	}
	if len(e.Near) == before && hasSome(b.Values()) {
		e.add("value_other", nil, "%s", listed("rules of this key are for", shownValues(b, i),
			"the values of this key's rules are hashed, and not shown"))
	}
}

// shownValues are the values that rules name whole at entry i, but for those of rules with hash_values.
func shownValues(b *descriptors.Branch, i int) iter.Seq[string] {
	return func(yield func(string) bool) {
		for value, to := range b.Values() {
			if !to.Rule().Hashes(i) && !yield(value) {
				return
			}
		}
	}
}

// nearOtherEntries looks for rules that the descriptor matches with an entry less, with one more, or in another order.
func (e *matcher) nearOtherEntries() {
	e.nearWithout()
	e.nearOrder()
	e.nearWith()
}

func (e *matcher) nearWithout() {
	for i := len(e.entries) - 1; i >= 0 && len(e.entries) > 1; i-- {
		without := slices.Delete(slices.Clone(e.entries), i, i+1)
		if r := match(e.domain.Root(), without); r != nil && len(r.Limits) > 0 {
			e.add("extra_entry", r, "%s matches without the entry %s; do not send that, or add a level for it below the rule",
				at(r), shownEntry(e.entries[i]))
		}
	}
}

// nearOrder looks for an order of the entries that matches.
func (e *matcher) nearOrder() {
	found := e.inOrder(e.domain.Root(), nil, slices.Clone(e.entries))
	if found == nil || slices.Equal(found, e.entries) {
		return
	}
	names := make([]string, len(found))
	for i, entry := range found {
		names[i] = shownEntry(entry)
	}
	r := match(e.domain.Root(), found)
	e.add("order", r,
		"%s matches the same entries in another order, and the order counts; send %s", at(r), strings.Join(names, ","))
}

// inOrder puts rest behind the entries that led to the node so that they lead to a limit; nil if that does not go.
func (e *matcher) inOrder(n *descriptors.Node, done, rest []descriptors.Entry) []descriptors.Entry {
	if len(rest) == 0 && n.Rule() != nil && len(n.Rule().Limits) > 0 {
		return done
	}
	for i := range rest {
		if e.tries++; e.tries > maxTries {
			return nil
		}
		to, _ := n.Next(&rest[i], len(rest)-1)
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
func (e *matcher) nearWith() {
	n := e.domain.Root()
	for i := 0; n != nil && i < len(e.entries); i++ {
		for key, to := range nodesBelow(n) {
			if e.tries++; e.tries > maxTries {
				return
			}
			if r := match(to, e.entries[i:]); r != nil && len(r.Limits) > 0 {
				e.add("missing_entry", r, "%s matches with an entry %s before %s; send it as well",
					at(r), quotedShort(key), shownEntry(e.entries[i]))
			}
		}
		n, _ = n.Next(&e.entries[i], len(e.entries)-1-i)
	}
}

// nodesBelow are the nodes one level below, by key: none if there are more keys than could be tried, and of a key
// only that of the key alone if there are more values and patterns.
func nodesBelow(n *descriptors.Node) iter.Seq2[string, *descriptors.Node] {
	return func(yield func(string, *descriptors.Node) bool) {
		if n.Len() > maxTries {
			return
		}
		for key, b := range n.Branches() {
			nodes := []*descriptors.Node{b.Any()}
			if b.Len() <= maxTries {
				nodes = b.Nodes()
			}
			for _, to := range nodes {
				if to != nil && !yield(key, to) {
					return
				}
			}
		}
	}
}

// nearPrecedence looks for rules that would match the whole descriptor, had another rule not gone first.
func (e *matcher) nearPrecedence() {
	for i, found := range e.found {
		for _, w := range found[1:] {
			if r := match(w.To, e.entries[i+1:]); r != nil && len(r.Limits) > 0 {
				e.add("precedence", r,
					"%s would match the whole descriptor, but for %s the rule %s goes first, and a choice is never taken back; "+
						"write the levels below that rule, too", at(r), shownEntry(e.entries[i]), at(found[0].To.Rule()))
			}
		}
	}
}

// nearDeeper are rules with limits right below the node.
func (e *matcher) nearDeeper(n *descriptors.Node) {
	seen := 0
	for key, to := range nodesBelow(n) {
		if len(to.Rule().Limits) == 0 {
			continue
		}
		if seen++; seen > maxListedNear {
			return
		}
		e.add("deeper", to.Rule(), "%s has a limit, for descriptors that go on with the key %s; send it as well, "+
			"or write a rate_limit at %s", at(to.Rule()), quotedShort(key), n.Rule().Source)
	}
}

// nearestPatterns are the patterns and regexes that lack least of the value, in file order where they lack as much.
func nearestPatterns(b *descriptors.Branch, value string) []*descriptors.Pattern {
	lower := strings.ToLower(value)
	lacks := map[*descriptors.Pattern]int{}
	all := slices.DeleteFunc(b.Patterns(), func(p *descriptors.Pattern) bool {
		prefix, suffix := p.FixedEnds()
		lacks[p] = len(prefix) - commonFolded(lower, prefix, fromBegin) + len(suffix) - commonFolded(lower, suffix, fromEnd)
		return p.Kind() == descriptors.ByCIDR
	})
	slices.SortStableFunc(all, func(a, b *descriptors.Pattern) int { return cmp.Compare(lacks[a], lacks[b]) })
	return all[:min(len(all), maxListedNear)]
}

// missing says why the value does not match.
func missing(p *descriptors.Pattern, value string) string {
	prefix, suffix := p.FixedEnds()
	isRegex := p.Kind() == descriptors.ByRegex
	folded := ""
	if !isRegex && matchesText(strings.ToLower(p.Text()), strings.ToLower(value)) {
		folded = ": upper and lower case differ, and they count"
	}
	switch {
	case !strings.HasPrefix(value, prefix):
		return "does not begin with " + quotedShort(prefix) + folded
	case !strings.HasSuffix(value, suffix):
		return "does not end with " + quotedShort(suffix) + folded
	case isRegex:
		return "does not match as a whole the regex " + quotedShort(p.Text())
	}
	for text := range strings.SplitSeq(p.Text(), "*") {
		if !strings.Contains(value, text) {
			return "lacks " + quotedShort(text) + folded
		}
	}
	return "does not have the parts of " + quotedShort(p.Text()) + " one behind the other" + folded
}

// matchesText reports whether the value matches the text, in which each * stands for any characters or none.
func matchesText(text, value string) bool {
	texts := strings.Split(text, "*")
	last := len(texts) - 1
	rest, ok := strings.CutPrefix(value, texts[0])
	for _, text := range texts[1:last] {
		if ok {
			_, rest, ok = strings.Cut(rest, text)
		}
	}
	return ok && strings.HasSuffix(rest, texts[last])
}

// nearBlocks says why an address is in no block.
func (e *matcher) nearBlocks(b *descriptors.Branch, value string) {
	if !hasSome(b.Blocks()) {
		return
	}
	if host, err := netip.ParseAddrPort(value); err == nil {
		if all := b.Matches(host.Addr().String()); len(all) > 0 {
			r := all[0].To.Rule()
			e.add("cidr", r, "%s matches the address without its port; send only the address", at(r))
			return
		}
	}
	addr, err := netip.ParseAddr(value)
	var nearest netip.Prefix
	var r *descriptors.Rule
	common, seen := -1, 0
	for prefix, p := range b.Blocks() {
		if seen++; seen > maxTries {
			break
		}
		if n := commonBits(prefix.Addr(), addr.Unmap()); n > common {
			nearest, r, common = prefix, p.Rule(), n
		}
	}
	if err != nil {
		e.add("cidr", r, "%s matches addresses only, and the value is none", at(r))
		return
	}
	e.add("cidr", r, "%s does not match, because the address is not in %s", at(r), nearest)
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
