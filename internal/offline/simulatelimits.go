package offline

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Limit is a limit to simulate.
type Limit struct {
	Name   string // short: "funnel", or "2 daily funnel" where there are several limits
	Rule   string // which it is where there are several: "2 shop: remote_address (rules.yaml:4)"
	Policy *limiter.Policy
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
		c := comparison{from: l.Policy, without: map[string][]string{}}
		for _, a := range algorithms {
			if p := c.under(a); p != nil {
				add(p)
			}
		}
		for _, note := range c.unsupported() {
			notes = append(notes, prefix+note)
		}
	}
	return limits, notes
}

// comparison puts one limit under other algorithms.
type comparison struct {
	from    *limiter.Policy
	without map[string][]string // parameter, with its value, to the algorithms that do not have it
	notes   []string
}

// under is the limit under another algorithm, nil if that does not go.
func (c *comparison) under(a limiter.Algorithm) *limiter.Policy {
	from := c.from.Algorithm()
	if a == from {
		return c.from
	}
	in := limiter.Params{Algorithm: a, Limit: c.from.Limit(), Window: c.from.Window()}
	if from.Has("burst") && c.from.Capacity() != c.from.Limit() {
		if c.has(a, "burst", strconv.FormatInt(c.from.Capacity(), 10)) {
			in.Burst = c.from.Capacity()
		}
	}
	if wait := c.from.Params().MaxWait; wait > 0 { // a queue has one also if none is given
		if c.has(a, "max_wait", descriptors.FormatDuration(wait)) {
			in.MaxWait = wait
		}
	}
	if c.from.Params().TimeZone != nil {
		c.has(a, "align", "calendar")
	}
	if charge := c.from.ChargeDenied(); charge != from.DefaultChargeDenied() {
		in.ChargeDenied = charge
	}
	switch {
	case a.CountsInFlight():
		in.Window = limiter.DefaultLease
		c.notes = append(c.notes, fmt.Sprintf("%s: %d in flight at once, whatever the time", a, in.Limit))
	case from.CountsInFlight() && !slices.Contains(c.notes, leaseNote):
		c.notes = append(c.notes, leaseNote)
	}
	p, err := limiter.NewPolicy(in)
	if err != nil {
		why := strings.ReplaceAll(descriptors.PolicyError(err).Error(), "\n", "; ")
		c.notes = append(c.notes, fmt.Sprintf("%s is left out: %s", a, why))
		return nil
	}
	return p
}

const leaseNote = "the other algorithms count per lease, since concurrency has no other window"

// has says whether the algorithm has the parameter, and notes it if not.
func (c *comparison) has(a limiter.Algorithm, param, value string) bool {
	if a.Has(param) {
		return true
	}
	c.without[param+" "+value] = append(c.without[param+" "+value], a.String())
	return false
}

// unsupported is what an algorithm cannot take over.
func (c *comparison) unsupported() []string {
	var all []string
	for _, param := range []string{"burst", "max_wait", "align"} {
		for given, algorithms := range c.without {
			if strings.HasPrefix(given, param+" ") {
				all = append(all, fmt.Sprintf("%s: not a parameter of %s", given, strings.Join(algorithms, ", ")))
			}
		}
	}
	return append(all, c.notes...)
}

// alone returns rules that have this limit only, for requests of onlyDomain with onlyKey and any value.
func alone(p *limiter.Policy) (*descriptors.Set, error) {
	limit := &descriptors.RateLimit{Params: p.Params()}
	switch { // a rule file, too, has no window there
	case p.Algorithm().CountsInFlight():
		limit.Lease, limit.Params.Window = p.Window(), 0
	case p.Params().TimeZone != nil:
		unit, multiplier := descriptors.UnitOf(p.Window())
		limit.Unit, limit.UnitMultiplier, limit.Params.Window = unit, int64(multiplier), 0
	}
	b := descriptors.NewBuilder(descriptors.Process{})
	b.Add(onlyDomain, &descriptors.Descriptor{Key: onlyKey, RateLimit: limit})
	return b.Build()
}

const onlyDomain, onlyKey = "simulate", "key"
