package descriptors

import (
	"cmp"
	"slices"
)

// MaxKeyOrders is how many orders of one set of keys KeyOrders tries. Rules rarely have more than one.
const MaxKeyOrders = 8

// KeyOrders finds the rule of entries that come without an order, as those of a bucket of Envoy's quota filter do: it
// knows in which orders the rules of a domain have each set of keys. It is immutable and safe for concurrent use.
type KeyOrders struct {
	domain *Domain
	orders map[string][]keyOrder // by the keys, sorted, each with a 0 byte behind it
}

// keyOrder is the keys from a domain's root to some of its rules.
type keyOrder struct {
	keys  []string
	first *Rule // in file order
	place int   // of that rule
}

// KeyOrders returns the orders of the domain's rules, which the first call finds. Paths that have one key twice are
// left out: entries without an order have each key once.
func (d *Domain) KeyOrders() *KeyOrders {
	d.findOrders.Do(func() { d.orders = newKeyOrders(d) })
	return d.orders
}

func newKeyOrders(d *Domain) *KeyOrders {
	place := make(map[*Rule]int, len(d.rules))
	for i, r := range d.rules {
		place[r] = i
	}
	seen := map[string]*keyOrder{} // by the keys in the rule's order
	d.eachPath(func(keys []string, r *Rule) {
		name := joinKeys(keys)
		if known := seen[name]; known == nil {
			seen[name] = &keyOrder{keys: slices.Clone(keys), first: r, place: place[r]}
		} else if place[r] < known.place {
			known.first, known.place = r, place[r]
		}
	})
	o := &KeyOrders{domain: d, orders: map[string][]keyOrder{}}
	for _, order := range seen {
		sorted := slices.Sorted(slices.Values(order.keys))
		if len(slices.Compact(slices.Clone(sorted))) < len(sorted) {
			continue
		}
		name := joinKeys(sorted)
		o.orders[name] = append(o.orders[name], *order)
	}
	for name, all := range o.orders {
		slices.SortFunc(all, func(a, b keyOrder) int { return cmp.Compare(a.place, b.place) })
		o.orders[name] = all[:min(len(all), MaxKeyOrders)]
	}
	return o
}

// eachPath calls do with each rule and the keys that lead to it. The keys are valid during the call.
func (d *Domain) eachPath(do func(keys []string, r *Rule)) {
	var below func(n *Node, keys []string)
	below = func(n *Node, keys []string) {
		for key, b := range n.keys {
			to := append(keys, key) //nolint:gocritic // each branch overwrites the key of the one before
			for _, n := range b.Nodes() {
				do(to, n.rule)
				below(n, to)
			}
		}
	}
	below(&d.root, nil)
}

func joinKeys(keys []string) string {
	var dst []byte
	for _, key := range keys {
		dst = append(append(dst, key...), 0)
	}
	return string(dst)
}

// Match orders the entries, which are sorted by key and have no key twice, as the rules do, and returns the rule that
// they reach, nil if there is none. Of several orders it takes the first one, in file order, that reaches a rule that
// has a limit or is unlimited, else the first one that reaches any rule.
func (o *KeyOrders) Match(entries []Entry) (ordered []Entry, r *Rule) {
	var name []byte
	for _, e := range entries {
		name = append(append(name, e.Key...), 0)
	}
	for _, order := range o.orders[string(name)] {
		if r != nil && r.isDecisive() {
			break
		}
		try := make([]Entry, 0, len(entries))
		for _, key := range order.keys {
			i, _ := slices.BinarySearchFunc(entries, key, func(e Entry, key string) int { return cmp.Compare(e.Key, key) })
			try = append(try, entries[i])
		}
		if found := o.domain.Match(try); found != nil && (r == nil || found.isDecisive()) {
			ordered, r = try, found
		}
	}
	return ordered, r
}

// isDecisive reports whether the rule says something about requests.
func (r *Rule) isDecisive() bool { return len(r.Limits) > 0 || r.Unlimited }
