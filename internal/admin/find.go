package admin

import (
	"errors"
	"fmt"
	"strings"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// errNotFound is wrapped by errors about a domain, a rule or a descriptor that the live rules do not have.
var errNotFound = errors.New("not found")

// matchRule returns the rule that a descriptor matches, and the descriptor's entries.
func matchRule(set *descriptors.Set, domain, descriptor string) (*descriptors.Rule, []descriptors.Entry, error) {
	entries, err := descriptors.ParseEntries(descriptor)
	if err != nil {
		return nil, nil, invalid("descriptor: %v", err)
	}
	d, err := findDomain(set, domain)
	if err != nil {
		return nil, nil, err
	}
	rule := d.Match(entries)
	if rule == nil {
		return nil, nil, fmt.Errorf("descriptor: no rule of domain %q matches it (%w); weir explain says why", domain,
			errNotFound)
	}
	return rule, entries, nil
}

// findDomain returns the domain of that name. Its error lists the domains of the set.
func findDomain(set *descriptors.Set, name string) (*descriptors.Domain, error) {
	if set == nil {
		return nil, fmt.Errorf("domain: no rules are loaded yet (%w)", errNotFound)
	}
	if d := set.Domain(name); d != nil {
		return d, nil
	}
	var names []string
	for _, d := range set.Domains() {
		names = append(names, d.Name())
	}
	return nil, fmt.Errorf("domain: there is no %q (%w); there is %s", name, errNotFound, firstFew(names))
}

// findRule returns the rule of a domain by its path. Its error lists rules of the domain.
func findRule(set *descriptors.Set, domain, path string) (*descriptors.Rule, error) {
	d, err := findDomain(set, domain)
	if err != nil {
		return nil, err
	}
	if rule := d.Rule(path); rule != nil {
		return rule, nil
	}
	var paths []string
	for _, r := range d.Rules() {
		paths = append(paths, r.Path)
	}
	return nil, fmt.Errorf("rule: domain %q has no rule %q (%w); it has %s", domain, path, errNotFound, firstFew(paths))
}

// firstFew quotes the first names of a list for an error message.
func firstFew(names []string) string {
	const few = 10
	if len(names) == 0 {
		return "none"
	}
	shown := make([]string, min(few, len(names)))
	for i := range shown {
		shown[i] = fmt.Sprintf("%q", names[i])
	}
	text := strings.Join(shown, ", ")
	if more := len(names) - len(shown); more > 0 {
		text += fmt.Sprintf(" and %d more: see GET /rules", more)
	}
	return text
}
