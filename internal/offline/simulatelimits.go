package offline

import (
	"fmt"
	"strings"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Limit is a limit to simulate.
type Limit struct {
	Name   string          `json:"name"`           // short: "funnel", or "2 daily funnel" where there are several limits
	Rule   string          `json:"rule,omitempty"` // which of several: "2 shop: remote_address (rules.yaml:4)"
	Policy *limiter.Policy `json:"-"`
}

// String is the name and the rate: "funnel: 10 per 1s, burst 20".
func (l Limit) String() string { return l.Name + ": " + descriptors.FormatRate(l.Policy) }

// Limits are the limits of the rules, each as it is written or, if algorithms are given, once under each of
// them. notes say what an algorithm cannot take over.
func Limits(set *descriptors.Set, algorithms []limiter.Algorithm) (limits []Limit, notes []string) {
	for i, l := range set.Limits() {
		prefix, rule := "", ""
		if len(set.Limits()) > 1 {
			prefix = strings.TrimSpace(fmt.Sprintf("%d %s", i+1, l.Name)) + " "
			rule = strings.TrimSpace(fmt.Sprintf("%s%s: %s (%s)", prefix, l.Rule.Domain, l.Rule.Path, l.Rule.Source))
		}
		add := func(p *limiter.Policy) {
			limits = append(limits, Limit{Name: prefix + p.Algorithm().String(), Rule: rule, Policy: p})
		}
		if len(algorithms) == 0 {
			add(l.Policy)
			continue
		}
		for _, a := range algorithms {
			p, note := under(l, a)
			if p != nil {
				add(p)
			}
			if note != "" {
				notes = append(notes, prefix+note)
			}
		}
	}
	return limits, notes
}

// under is the limit under another algorithm, nil if that does not go, and what to know of it.
func under(from *descriptors.Limit, a limiter.Algorithm) (p *limiter.Policy, note string) {
	was, params := from.Policy.Algorithm(), from.Params()
	if a == was {
		return from.Policy, ""
	}
	in := limiter.Params{Algorithm: a, Limit: params.Limit, DenyAll: params.DenyAll, Window: params.Window}
	var lost []string
	for _, p := range was.Parameters() {
		switch v := p.Get(&params); {
		case v == 0 || p.Name == "lease":
		case a.Takes(p.Name):
			p.Set(&in, v)
		default:
			lost = append(lost, p.Name)
		}
	}
	switch {
	case a.CountsInFlight():
		in.Window = descriptors.DefaultLease
		note = fmt.Sprintf("%s: %d in flight at once, whatever the time", a, in.Limit)
	case was.CountsInFlight():
		note = fmt.Sprintf("%s counts per lease, since concurrency has no other window", a)
	case lost != nil:
		note = fmt.Sprintf("%s has no %s", a, strings.Join(lost, ", "))
	}
	p, err := limiter.NewPolicy(in)
	if err != nil {
		why := strings.ReplaceAll(descriptors.PolicyError(err).Error(), "\n", "; ")
		return nil, fmt.Sprintf("%s is left out: %s", a, why)
	}
	return p, note
}

// alone returns rules that have this limit only, for requests of onlyDomain with onlyKey and any value.
func alone(p *limiter.Policy) (*descriptors.Set, error) {
	limit := &descriptors.RateLimit{Params: p.Params()}
	b := descriptors.NewBuilder(descriptors.Process{})
	b.Add(onlyDomain, &descriptors.Descriptor{Key: onlyKey, RateLimit: limit})
	return b.Build()
}

const onlyDomain, onlyKey = "simulate", "key"
