package admin

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// errNotFound is wrapped by errors about a domain, rule or descriptor that the active rules do not have.
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
		return nil, nil, fmt.Errorf("descriptor: no rule of domain %q matches it (%w); weir explain shows why", domain,
			errNotFound)
	}
	return rule, entries, nil
}

// findDomain returns the domain of that name. Its error lists the existing domains.
func findDomain(set *descriptors.Set, name string) (*descriptors.Domain, error) {
	if set == nil {
		return nil, fmt.Errorf("domain: no rules are loaded yet (%w)", errNotFound)
	}
	if d := set.Domain(name); d != nil {
		return d, nil
	}
	var names []string
	for i, d := range set.Domains() {
		if i == 10 {
			names = append(names, "...")
			break
		}
		names = append(names, strconv.Quote(d.Name()))
	}
	return nil, fmt.Errorf("domain: there is no domain %q (%w); the domains are: %s", name, errNotFound,
		cmp.Or(strings.Join(names, ", "), "none"))
}

// findRule returns the rule of a domain by its path.
func findRule(set *descriptors.Set, domain, path string) (*descriptors.Rule, error) {
	d, err := findDomain(set, domain)
	if err != nil {
		return nil, err
	}
	if rule := d.Rule(path); rule != nil {
		return rule, nil
	}
	return nil, fmt.Errorf("rule: domain %q has no rule %q (%w); GET /rules shows its rules", domain, path,
		errNotFound)
}
