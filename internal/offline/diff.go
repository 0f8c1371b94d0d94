package offline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// What a Change did.
const (
	Added     = "added"
	Removed   = "removed"
	Changed   = "changed"
	Reordered = "reordered"
)

// Change is one thing that means something else in a new set than in an old one.
type Change struct {
	What   string `json:"what"` // Added, Removed, Changed or Reordered
	Domain string `json:"domain"`
	// Rule is its path; empty if it is a whole domain.
	Rule string `json:"rule,omitempty"`
	// Source is the rule's position in the new set, or in the old one if it was removed.
	Source string `json:"source,omitempty"`
	// Fields are what changed, and of a rule that was added or removed what it says.
	Fields []FieldChange `json:"fields,omitempty"`
}

// FieldChange is one field. Old and New are as GET /rules shows them; empty: not there, or the default. A field of one
// of several limits begins with the limit: by its name, else by algorithm and window.
type FieldChange struct {
	Field string `json:"field"`
	Old   string `json:"old"`
	New   string `json:"new"`
}

// Changes are the differences between two sets by domain, then as the new one's files have the rules, those that are
// gone last. A rule is the same as before if its path is: one whose path shows another list of values is a new rule.
// Where a rule is written, how (window: 60s or unit: minute), and what is for people only (comments, description,
// owner) is no difference. The order of rules is one only for the patterns of one key.
func Changes(before, after *descriptors.Set) []Change {
	var c changes
	names := map[string]bool{}
	for _, s := range []*descriptors.Set{before, after} {
		for _, d := range s.Domains() {
			names[d.Name()] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		c.domain(name, before.Domain(name), after.Domain(name))
	}
	return c.all
}

type changes struct{ all []Change }

func (c *changes) domain(name string, before, after *descriptors.Domain) {
	switch {
	case before == nil:
		c.all = append(c.all, Change{What: Added, Domain: name})
		before = &descriptors.Domain{}
	case after == nil:
		c.all = append(c.all, Change{What: Removed, Domain: name})
		after = &descriptors.Domain{}
	}
	values, nowValues := valuesOf(before), valuesOf(after)
	old := byPath(before)
	for _, r := range after.Rules() {
		was, what := old[r.Path], Changed
		delete(old, r.Path)
		var fields []FieldChange
		if was == nil {
			what, was = Added, &descriptors.Rule{}
		} else {
			fields = differentValues(values[was], nowValues[r])
		}
		if fields = append(fields, ruleChanges(was, r)...); len(fields) > 0 || what == Added {
			c.all = append(c.all, Change{What: what, Domain: name, Rule: r.Path, Source: r.Source, Fields: fields})
		}
	}
	for _, r := range before.Rules() {
		if old[r.Path] != nil {
			fields := ruleChanges(r, &descriptors.Rule{})
			c.all = append(c.all, Change{What: Removed, Domain: name, Rule: r.Path, Source: r.Source, Fields: fields})
		}
	}
	c.order(before, after)
}

// order reports, for each key, the first pattern that is matched before others than in the old order.
func (c *changes) order(before, after *descriptors.Domain) {
	old := maps.Collect(branches(before))
	for at, b := range branches(after) {
		if old[at] == nil {
			continue
		}
		was, is := orderedRules(old[at]), orderedRules(b)
		wasThere, isThere := pathsOf(was), pathsOf(is)
		was = slices.DeleteFunc(was, func(r *descriptors.Rule) bool { return !isThere[r.Path] })
		is = slices.DeleteFunc(is, func(r *descriptors.Rule) bool { return !wasThere[r.Path] })
		for i, r := range is {
			if last := was[i].Path; last != r.Path {
				c.all = append(c.all, Change{
					What: Reordered, Domain: r.Domain, Rule: r.Path, Source: r.Source,
					Fields: []FieldChange{{"matched", "after " + last, "before " + last}},
				})
				break
			}
		}
	}
}

// orderedRules are the rules of a branch's patterns in their order, each once; none if all are blocks, of which the
// longest matches first, whatever the order.
func orderedRules(b *descriptors.Branch) (rules []*descriptors.Rule) {
	onlyBlocks := true
	for _, p := range b.Patterns() {
		onlyBlocks = onlyBlocks && p.Kind() == descriptors.ByCIDR
		rules = append(rules, p.To.Rule)
	}
	if onlyBlocks {
		return nil
	}
	return slices.Compact(rules)
}

func pathsOf(rules []*descriptors.Rule) map[string]bool {
	paths := map[string]bool{}
	for _, r := range rules {
		paths[r.Path] = true
	}
	return paths
}

// branchAt is where a branch is: below which rule, and by which key.
type branchAt struct{ parent, key string }

// branches are all branches of a domain.
func branches(d *descriptors.Domain) iter.Seq2[branchAt, *descriptors.Branch] {
	return func(yield func(branchAt, *descriptors.Branch) bool) {
		var below func(n *descriptors.Node, path string) bool
		below = func(n *descriptors.Node, path string) bool {
			for _, key := range slices.Sorted(maps.Keys(n.Keys)) {
				b := n.Keys[key]
				if !yield(branchAt{path, key}, b) {
					return false
				}
				for _, to := range b.Nodes() {
					if !below(to, to.Rule.Path) {
						return false
					}
				}
			}
			return true
		}
		below(&d.Root, "")
	}
}

func byPath(d *descriptors.Domain) map[string]*descriptors.Rule {
	all := make(map[string]*descriptors.Rule, len(d.Rules()))
	for _, r := range d.Rules() {
		all[r.Path] = r
	}
	return all
}

// valuesOf are the values and blocks that rules list.
func valuesOf(d *descriptors.Domain) map[*descriptors.Rule]map[string]bool {
	all := map[*descriptors.Rule]map[string]bool{}
	add := func(r *descriptors.Rule, value string) {
		if all[r] == nil {
			all[r] = map[string]bool{}
		}
		all[r][value] = true
	}
	for _, b := range branches(d) {
		for value, to := range b.Values {
			add(to.Rule, value)
		}
		for prefix, p := range b.Blocks() {
			add(p.To.Rule, prefix.String())
		}
	}
	return all
}

// maxShownValues is how many values of a list that changed are shown.
const maxShownValues = 5

func differentValues(before, after map[string]bool) []FieldChange {
	only := func(in, notIn map[string]bool, are string) string {
		var all []string
		for v := range in {
			if !notIn[v] {
				all = append(all, v)
			}
		}
		if len(all) == 0 {
			return ""
		}
		slices.Sort(all)
		text := fmt.Sprintf("%d %s: %s", len(all), are, strings.Join(all[:min(len(all), maxShownValues)], ", "))
		if len(all) > maxShownValues {
			text += ", ..."
		}
		return text
	}
	f := FieldChange{"values", only(before, after, "gone"), only(after, before, "new")}
	if f.Old == "" && f.New == "" {
		return nil
	}
	return []FieldChange{f}
}

// fieldsOf are the fields of v in JSON, texts without their quotes.
func fieldsOf(v any, omit ...string) map[string]string {
	var raw map[string]json.RawMessage
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil || json.Unmarshal(b.Bytes(), &raw) != nil {
		return nil // metadata that JSON cannot show was refused before
	}
	fields := map[string]string{}
	for name, value := range raw {
		if text := ""; json.Unmarshal(value, &text) == nil {
			fields[name] = text
		} else {
			fields[name] = string(value)
		}
	}
	for _, name := range omit {
		delete(fields, name)
	}
	return fields
}

// differ are the fields that are not equal, those that say how many first.
func differ(before, after map[string]string) (all []FieldChange) {
	names := map[string]bool{}
	for _, fields := range []map[string]string{before, after} {
		for name := range fields {
			names[name] = true
		}
	}
	first := []string{"algorithm", "requests_per_unit", "window", "burst"}
	for _, name := range append(first, slices.Sorted(maps.Keys(names))...) {
		if names[name] && before[name] != after[name] {
			all = append(all, FieldChange{name, before[name], after[name]})
		}
		delete(names, name)
	}
	return all
}
