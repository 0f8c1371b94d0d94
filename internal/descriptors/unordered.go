package descriptors

import "slices"

// MatchUnordered returns the rule that entries without an order reach, such as those of a bucket of Envoy's quota
// filter, and the entries in the rule's order. Each key must occur once. If several orders reach a rule, the first rule
// in file order that has a limit or is unlimited wins, else the first rule. If no order reaches one, r is nil.
func (d *Domain) MatchUnordered(entries []Entry) (ordered []Entry, r *Rule) {
	entries = slices.Clone(entries)
	saysMore := func(a, b *Rule) bool {
		isDecisive := func(r *Rule) bool { return len(r.Limits) > 0 || r.Unlimited }
		if isDecisive(a) != isDecisive(b) {
			return isDecisive(a)
		}
		return slices.Index(d.rules, a) < slices.Index(d.rules, b)
	}
	reach := func(rule *Rule) {
		if rule != nil && (r == nil || saysMore(rule, r)) {
			ordered, r = slices.Clone(entries), rule
		}
	}
	var walk func(n *Node, at int)
	walk = func(n *Node, at int) { // entries[:at] lead to n
		if at == len(entries) {
			reach(n.Rule)
		}
		for i := at; i < len(entries); i++ {
			entries[at], entries[i] = entries[i], entries[at]
			if to, open := n.Next(&entries[at], len(entries)-1-at); to != nil {
				walk(to, at+1)
			} else if open != nil {
				reach(d.long)
			}
			entries[at], entries[i] = entries[i], entries[at]
		}
	}
	walk(&d.Root, 0)
	return ordered, r
}
