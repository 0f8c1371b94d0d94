package offline

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// Values of Change.What.
const (
	Added     = "added"
	Removed   = "removed"
	Changed   = "changed"
	Reordered = "reordered"
)

// Change is a rule or a domain whose meaning differs between two sets.
type Change struct {
	What   string `json:"what"` // Added, Removed, Changed or Reordered
	Domain string `json:"domain"`
	// Rule is the rule's path; empty for a whole domain.
	Rule string `json:"rule,omitempty"`
	// Source is the rule's position in the new set, or in the old one if it was removed.
	Source string `json:"source,omitempty"`
	// Fields are the changed fields; for an added or removed rule, its fields.
	Fields []FieldChange `json:"fields,omitempty"`
}

// FieldChange is a field with its old and new value, in the form of GET /rules. A value is empty if it is absent or the
// default. If the rule has several limits, Field begins with the limit's name, else with its algorithm and window.
type FieldChange struct {
	Field string `json:"field"`
	Old   string `json:"old"`
	New   string `json:"new"`
}

// Changes returns the differences between two sets, by domain, in the order of the new files, with removed rules last.
// A rule is identified by its path, so a rule with another list of values is a new rule. The position of a rule, the
// spelling of its values (window: 60s or unit: minute), comments, description and owner make no difference. The order
// of rules is a difference only for patterns of the same key.
func Changes(before, after *descriptors.Set) (all []Change) {
	names := map[string]bool{}
	for _, d := range slices.Concat(before.Domains(), after.Domains()) {
		names[d.Name()] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		was, is := before.Domain(name), after.Domain(name)
		switch {
		case was == nil:
			all = append(all, Change{What: Added, Domain: name})
			was = &descriptors.Domain{}
		case is == nil:
			all = append(all, Change{What: Removed, Domain: name})
			is = &descriptors.Domain{}
		}
		all = append(all, domainChanges(was, is)...)
	}
	return all
}

func domainChanges(before, after *descriptors.Domain) (all []Change) {
	was, is := treeOf(before), treeOf(after)
	add := func(what string, r *descriptors.Rule, fields []FieldChange) {
		all = append(all, Change{What: what, Domain: r.Domain, Rule: r.Path, Source: r.Source, Fields: fields})
	}
	for _, r := range after.Rules() {
		old := before.Rule(r.Path)
		if old == nil {
			add(Added, r, ruleChanges(&descriptors.Rule{}, r))
			continue
		}
		fields := append(differentItems(was.items[r.Path], is.items[r.Path]), ruleChanges(old, r)...)
		if len(fields) > 0 {
			add(Changed, r, fields)
		}
	}
	for _, r := range before.Rules() {
		if after.Rule(r.Path) == nil {
			add(Removed, r, ruleChanges(r, &descriptors.Rule{}))
		}
	}
	// Find the first pattern of a key that now precedes patterns that it used to follow.
	for _, at := range slices.Sorted(maps.Keys(is.order)) {
		now := slices.DeleteFunc(is.order[at], func(path string) bool { return !slices.Contains(was.order[at], path) })
		old := slices.DeleteFunc(was.order[at], func(path string) bool { return !slices.Contains(now, path) })
		for i, path := range now {
			if old[i] != path {
				add(Reordered, after.Rule(path), []FieldChange{{"matched", "after " + old[i], "before " + old[i]}})
				break
			}
		}
	}
	return all
}

// tree has the parts of a domain that its rules do not have.
type tree struct {
	items map[string]map[string]bool // values, patterns and blocks of each rule, by its path
	order map[string][]string        // paths of the rules with patterns, in order, by parent path and key
}

func treeOf(d *descriptors.Domain) tree {
	t := tree{map[string]map[string]bool{}, map[string][]string{}}
	t.add(&d.Root, "")
	return t
}

func (t tree) add(n *descriptors.Node, path string) {
	for key, b := range n.Keys {
		for _, to := range b.Nodes() {
			t.items[to.Rule.Path] = map[string]bool{}
			t.add(to, to.Rule.Path)
		}
		for value, to := range b.Values {
			t.items[to.Rule.Path][value] = true
		}
		for prefix, p := range b.Blocks() {
			t.items[p.To.Rule.Path][prefix.String()] = true
		}
		var order []string
		onlyBlocks := true // the longest block matches, whatever the order
		for _, p := range b.Patterns() {
			order = append(order, p.To.Rule.Path)
			if p.Kind() != descriptors.ByCIDR {
				onlyBlocks = false
				t.items[p.To.Rule.Path][p.Text] = true
			}
		}
		if !onlyBlocks {
			t.order[path+"\x00"+key] = slices.Compact(order)
		}
	}
}

// maxShownItems is the maximum number of items to show of a changed list.
const maxShownItems = 5

func differentItems(before, after map[string]bool) []FieldChange {
	only := func(in, notIn map[string]bool, are string) string {
		all := slices.DeleteFunc(slices.Sorted(maps.Keys(in)), func(item string) bool { return notIn[item] })
		if len(all) == 0 {
			return ""
		}
		text := fmt.Sprintf("%d %s: %s", len(all), are, strings.Join(all[:min(len(all), maxShownItems)], ", "))
		if len(all) > maxShownItems {
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

// ruleChanges returns the fields of a rule and of its limits that differ. An empty rule means that the rule is absent.
func ruleChanges(before, after *descriptors.Rule) []FieldChange {
	about := []string{"path", "source", "limits", "description", "owner"}
	all := differ("", fieldsOf(before, about...), fieldsOf(after, about...))
	isOnly := len(before.Limits) <= 1 && len(after.Limits) <= 1
	old, now := byLabel(before.Limits, isOnly), byLabel(after.Limits, isOnly)
	labels := maps.Clone(old)
	maps.Copy(labels, now)
	for _, label := range slices.Sorted(maps.Keys(labels)) {
		was, is := old[label], now[label]
		fields, newFields := limitFields(was), limitFields(is)
		if was == nil || is == nil {
			all = append(all, differ(label, fields, newFields)...)
			continue
		}
		params, newParams := was.Policy.Params(), is.Policy.Params()
		for _, p := range was.Policy.Algorithm().Parameters() {
			if !p.IsZone() && p.Get(&params) == p.Get(&newParams) { // an explicit default equals an implicit one
				delete(fields, p.Name)
				delete(newFields, p.Name)
			}
		}
		all = append(all, differ(label, fields, newFields)...)
		if !was.SameCounters(is) {
			all = append(all, FieldChange{label + "counter", "the old one", "a new one: hits counted before are forgotten"})
		}
	}
	return all
}

// byLabel maps limits by the prefix of their field names: "" for the only limit, else the limit's name, or its
// algorithm and window.
func byLabel(limits []*descriptors.Limit, isOnly bool) map[string]*descriptors.Limit {
	all := map[string]*descriptors.Limit{}
	for _, l := range limits {
		window := descriptors.FormatDuration(l.Policy.Window())
		label := cmp.Or(l.Name, fmt.Sprintf("%s per %s", l.Policy.Algorithm(), window)) + ": "
		if isOnly {
			label = ""
		}
		all[label] = l
	}
	return all
}

// limitFields returns the fields of a limit by their names in rule files, with all constant defaults.
func limitFields(l *descriptors.Limit) map[string]string {
	if l == nil {
		return nil
	}
	fields := fieldsOf(l, "id", "unit", "unit_multiplier", "capacity", "default") // repeated fields, and a position
	if l.Policy.Algorithm().CountsInFlight() {
		delete(fields, "window") // the window of concurrency is its lease
	}
	return fields
}

// fieldsOf returns the JSON fields of v. Strings have no quotes.
func fieldsOf(v any, omit ...string) map[string]string {
	var raw map[string]json.RawMessage
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil || json.Unmarshal(b.Bytes(), &raw) != nil {
		return nil // metadata that JSON cannot show is already refused
	}
	fields := map[string]string{}
	for name, value := range raw {
		text := ""
		if json.Unmarshal(value, &text) != nil {
			text = string(value)
		}
		fields[name] = text
	}
	maps.DeleteFunc(fields, func(name, _ string) bool { return slices.Contains(omit, name) })
	return fields
}

// differ returns the fields that differ. Their names begin with label; the fields of the rate come first.
func differ(label string, before, after map[string]string) (all []FieldChange) {
	names := []string{"algorithm", "requests_per_unit", "window", "burst"}
	names = slices.Concat(names, slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after)))
	for i, name := range names {
		if before[name] != after[name] && slices.Index(names, name) == i {
			all = append(all, FieldChange{label + name, before[name], after[name]})
		}
	}
	return all
}
