package offline

import (
	"fmt"
	"strings"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Limit is a limit to simulate.
type Limit struct {
	Name   string          `json:"name"`           // such as "funnel", or "2 daily funnel" if there are several limits
	Rule   string          `json:"rule,omitempty"` // "2 shop: remote_address (rules.yaml:4)", or "" for a single limit
	Policy *limiter.Policy `json:"-"`
	// Reservation is nil for a limit that charges the whole cost when a request arrives.
	Reservation *descriptors.Reservation `json:"-"`
}

// String returns the name and the rate, such as "funnel: 10 per 1s, burst 20".
func (l Limit) String() string {
	return l.Name + ": " + descriptors.FormatRate(l.Policy, l.Reservation)
}

// Limits returns the limits of the rules.
func Limits(set *descriptors.Set) (limits []Limit) {
	for i, l := range set.Limits() {
		name, rule := l.Policy.Algorithm().String(), ""
		if len(set.Limits()) > 1 {
			prefix := strings.TrimSpace(fmt.Sprintf("%d %s", i+1, l.Name)) + " "
			name = prefix + name
			rule = strings.TrimSpace(fmt.Sprintf("%s%s: %s (%s)", prefix, l.Rule.Domain, l.Rule.Path, l.Rule.Source))
		}
		limits = append(limits, Limit{Name: name, Rule: rule, Policy: l.Policy, Reservation: l.Reservation})
	}
	return limits
}

// alone returns rules with only this limit, for requests of onlyDomain with onlyKey and any value.
func alone(l Limit) (*descriptors.Set, error) {
	limit := &descriptors.RateLimit{Params: l.Policy.Params(), Reservation: l.Reservation}
	b := descriptors.NewBuilder(descriptors.Process{})
	b.Add(onlyDomain, &descriptors.Descriptor{Key: onlyKey, RateLimit: limit})
	return b.Build()
}

const onlyDomain, onlyKey = "simulate", "key"
