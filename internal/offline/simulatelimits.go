package offline

import (
	"fmt"
	"slices"
	"strconv"
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
		notes = append(notes, unsupported(prefix, l.Policy, algorithms)...)
		for _, a := range algorithms {
			p, note := under(l.Policy, a)
			if p != nil {
				add(p)
			}
			if note != "" && !slices.Contains(notes, prefix+note) {
				notes = append(notes, prefix+note)
			}
		}
	}
	return limits, notes
}

// under is the limit under another algorithm, nil if that does not go, and what to know of it.
func under(from *limiter.Policy, a limiter.Algorithm) (p *limiter.Policy, note string) {
	was := from.Algorithm()
	if a == was {
		return from, ""
	}
	in := limiter.Params{Algorithm: a, Limit: from.Limit(), Window: from.Window()}
	if a.Has("burst") && hasBurst(from) {
		in.Burst = from.Capacity()
	}
	if a.Has("max_wait") { // a queue has one also if none is given
		in.MaxWait = from.Params().MaxWait
	}
	if charge := from.ChargeDenied(); charge != was.DefaultChargeDenied() {
		in.ChargeDenied = charge
	}
	switch {
	case a.CountsInFlight():
		in.Window = limiter.DefaultLease
		note = fmt.Sprintf("%s: %d in flight at once, whatever the time", a, in.Limit)
	case was.CountsInFlight():
		note = leaseNote
	}
	p, err := limiter.NewPolicy(in)
	if err != nil {
		why := strings.ReplaceAll(descriptors.PolicyError(err).Error(), "\n", "; ")
		return nil, fmt.Sprintf("%s is left out: %s", a, why)
	}
	return p, note
}

const leaseNote = "the other algorithms count per lease, since concurrency has no other window"

func hasBurst(p *limiter.Policy) bool { return p.Algorithm().Has("burst") && p.Capacity() != p.Limit() }

// unsupported names the parameters of a limit that some of the algorithms cannot take over.
func unsupported(prefix string, from *limiter.Policy, algorithms []limiter.Algorithm) (notes []string) {
	for _, given := range []struct {
		is           bool
		param, value string
	}{
		{hasBurst(from), "burst", strconv.FormatInt(from.Capacity(), 10)},
		{from.Params().MaxWait > 0, "max_wait", descriptors.FormatDuration(from.Params().MaxWait)},
		{from.Params().TimeZone != nil, "align", "calendar"},
	} {
		var without []string
		for _, a := range algorithms {
			if given.is && a != from.Algorithm() && !a.Has(given.param) {
				without = append(without, a.String())
			}
		}
		if without != nil {
			notes = append(notes, fmt.Sprintf("%s%s %s: not a parameter of %s", prefix, given.param, given.value,
				strings.Join(without, ", ")))
		}
	}
	return notes
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
