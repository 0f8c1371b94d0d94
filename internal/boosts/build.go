package boosts

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// counter is what can be boosted: a limit of a rule, or with a key one counter of it.
type counter struct {
	limit *descriptors.Limit
	key   string
}

// build is what the boosts, oldest first, make of the limits of all sets, and their status in the first. A newer boost
// stands for an older one, and one of a counter for one of its rule.
func build(sets []*descriptors.Set, all []adminapi.Boost) (*decide.Boosts, []adminapi.BoostStatus) {
	status := make([]adminapi.BoostStatus, len(all))
	if len(all) == 0 {
		return nil, status
	}
	limits := &decide.Boosts{Rules: map[*descriptors.Limit]*descriptors.Limit{}, Keys: map[string][]decide.Boosted{}}
	owner := map[counter]int{}
	for s, set := range sets {
		rules := byPath{}
		for i := range all {
			applied := apply(&all[i], rules.find(set, all[i].Domain, all[i].Rule), limits)
			if s > 0 {
				continue
			}
			status[i] = applied.BoostStatus
			for _, c := range applied.counters {
				owner[c] = i
			}
		}
	}
	for _, i := range owner {
		status[i].InForce = true
	}
	for i := range status {
		if s := &status[i]; !s.InForce && s.Problem == "" {
			s.Problem = "a newer boost of the same rule or counter is in force"
		}
		status[i].Boost = all[i]
	}
	if len(limits.Rules) == 0 && len(limits.Keys) == 0 {
		return nil, status
	}
	return limits, status
}

// applied is what came of one boost.
type applied struct {
	adminapi.BoostStatus

	counters []counter
}

// apply puts what the boost makes of the rule's limits among limits.
func apply(b *adminapi.Boost, rule *descriptors.Rule, limits *decide.Boosts) (out applied) {
	if rule == nil {
		out.Problem = "the live rules have no such rule"
		return out
	}
	var problems []string
	for _, l := range rule.Limits {
		keys := slices.DeleteFunc(slices.Clone(b.Keys), func(key string) bool { return !l.Counts(key) })
		if len(b.Keys) > 0 && len(keys) == 0 {
			problems = append(problems, fmt.Sprintf("limit %q counts otherwise than when the boost was made", l.Name))
			continue
		}
		by, err := l.Scaled(b.Factor)
		if err != nil {
			problems = append(problems, err.Error())
			continue
		}
		out.Limits = append(out.Limits, adminapi.ScaledLimit{
			Limit: l.Name, Algorithm: l.Policy.Algorithm().String(), RequestsPerUnit: l.Policy.Limit(),
			Boosted: by.Policy.Limit(), Capacity: by.Policy.Capacity(), Window: descriptors.FormatDuration(l.Policy.Window()),
		})
		if len(b.Keys) == 0 {
			limits.Rules[l] = by
			out.counters = append(out.counters, counter{limit: l})
		}
		for _, key := range keys {
			older := slices.DeleteFunc(limits.Keys[key], func(k decide.Boosted) bool { return k.Of == l })
			limits.Keys[key] = append(older, decide.Boosted{Of: l, By: by})
			out.counters = append(out.counters, counter{l, key})
		}
	}
	if len(rule.Limits) == 0 {
		problems = append(problems, "the rule has no limit")
	}
	out.Problem = strings.Join(problems, "; ")
	return out
}

// byPath are the rules of domains, looked through once.
type byPath map[string]map[string]*descriptors.Rule

func (p byPath) find(set *descriptors.Set, domain, path string) *descriptors.Rule {
	rules, known := p[domain]
	if !known {
		if set == nil { // none are live yet
			return nil
		}
		rules = map[string]*descriptors.Rule{}
		if d := set.Domain(domain); d != nil {
			for _, r := range d.Rules() {
				rules[r.Path] = r
			}
		}
		p[domain] = rules
	}
	return rules[path]
}
