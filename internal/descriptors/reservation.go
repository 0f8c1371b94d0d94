package descriptors

import (
	"errors"
	"fmt"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Keys of entries that Weir takes out of a request before rules match: StartKey has the token that an end returns, and
// HintKey what a request says that it may cost.
const (
	StartKey = "weir_start"
	HintKey  = "weir_hint"
)

// Reservation is `reservation` in a rule file: a request is charged an estimate at its start, and corrected to its real
// cost at its end. Both numbers are in hits.
type Reservation struct {
	Estimate, AtMost int64 // with AtMost 0, the larger of Estimate and half of the capacity
	// EndsByCost, `ends: cost`, makes a cost above 1 the end of a request and a cost of 1 its start, for control planes
	// that send no token.
	EndsByCost bool
	At         Position
}

// Charge returns what a request is charged at its start if it may cost want hits. Charges have at most 34 different
// values, so that many requests of a key share a cached denial.
func (r *Reservation) Charge(want int64) int64 {
	step := max(1, (r.AtMost+31)/32)
	more := max(0, min(want, r.AtMost)-r.Estimate)
	return min(r.AtMost, r.Estimate+(more+step-1)/step*step)
}

// text returns the reservation for people, to follow a limit; "" for none.
func (r *Reservation) text() string {
	if r == nil {
		return ""
	}
	text := fmt.Sprintf(", reserves %d", r.Estimate)
	if r.AtMost > r.Estimate {
		text += fmt.Sprintf(" to %d", r.AtMost)
	}
	if r.EndsByCost {
		text += ", ends by cost"
	}
	return text
}

// forms returns the forms of the policies of a limit f with this reservation: for starts, and for ends that charge.
func (r *Reservation) forms(f form) (starts, ends form) {
	f.params.Reserve = r.AtMost
	starts, ends = f, f
	ends.params.ChargeDenied = limiter.ChargeFull
	return starts, ends
}

// leastStarts is the number of starts of the estimate that must fit the capacity, or there is a warning.
const leastStarts = 4

// checkReservation completes the limit's reservation and makes its policies. It expects a policy without reservation.
// A limit that denies all requests reserves nothing.
func (c *Builder) checkReservation(l *checked) {
	if l.Reservation == nil || l.params.DenyAll {
		return
	}
	r, capacity, before := *l.Reservation, l.policy.Capacity(), c.Problems()
	bad := func(format string, args ...any) {
		c.Errorf(l.fieldAt("reservation"), "reservation: "+format, args...)
	}
	whole := "the limit"
	if l.placement.Regions {
		whole = "the part of a region"
	}
	if r.AtMost == 0 {
		r.AtMost = max(r.Estimate, capacity/2)
	}
	of, instead := l.placement.notPrepayable(&l.params)
	switch {
	case of != "":
		bad("charges of %s cannot be corrected; remove reservation, or write %s", of, instead)
	case l.placement.LeaseFor != 0:
		bad("charges of leased permits cannot be corrected; remove reservation, or write consistency: strict")
	case r.Estimate < 1:
		bad("estimate must be at least 1, got %d", r.Estimate)
	case r.Estimate > capacity:
		bad("estimate must be at most %d, which %s admits at once, got %d", capacity, whole, r.Estimate)
	case r.AtMost > capacity:
		bad("at_most must be at most %d, which %s admits at once, got %d", capacity, whole, r.AtMost)
	case r.AtMost < r.Estimate:
		bad("at_most must be at least estimate, %d, got %d; write a larger at_most, or remove it", r.Estimate, r.AtMost)
	}
	if !chargesNothing(&l.params) {
		c.Errorf(l.fieldAt("charge_denied"),
			"charge_denied: a limit with a reservation charges a denied request nothing; use none")
	}
	if l.policy = nil; c.Problems() > before {
		return
	}
	if capacity/r.Estimate < leastStarts && l.ends == nil { // otherwise, a smaller part has this warning
		c.Warnf(WarnReservation, l.fieldAt("reservation"), "%s admits %d at once, less than %d times the estimate, "+
			"%d, so that few requests can be in flight; write a smaller estimate, or a larger limit over a longer time",
			whole, capacity, leastStarts, r.Estimate)
	}
	starts, ends := r.forms(l.form)
	policy, err := c.policyOf(starts)
	endsPolicy, endsErr := c.policyOf(ends)
	if err = errors.Join(err, endsErr); err != nil {
		c.reportParams(l, err)
		return
	}
	l.policy, l.ends, l.reserved = policy, endsPolicy, &r
}

// checkEnds reports reservations whose ends do not fit the rule.
func (c *Builder) checkEnds() {
	for i := range c.checked {
		if l := &c.checked[i]; l.reserved != nil && c.unfitEnds(l.reserved) != "" {
			c.Errorf(l.fieldAt("reservation"), "reservation: %s", c.unfitEnds(l.reserved))
		}
	}
}

// unfitEnds returns why a limit of the current rule cannot have the ends of r, and what to write instead, or "".
func (c *Builder) unfitEnds(r *Reservation) string {
	switch {
	case r.EndsByCost && c.inQuota:
		return "ends: cost does not work in quota mode, in which the start of a request names several quotas, but its end " +
			"only one; remove ends, or quota_mode"
	case c.reserved != nil && c.reserved.EndsByCost != r.EndsByCost:
		return "all limits of a rule must have the same ends, because a request starts or ends in all of them; write the " +
			"ends of the reservation at " + c.at(c.reserved.At).String()
	}
	return ""
}

// reserve reduces the rule's reservation to the capacity of a limit of Override, and makes its policies.
func (l *Limit) reserve(placement *Placement) error {
	r, capacity := *l.Reservation, l.Policy.Capacity()
	if l.Reservation, l.Ends = nil, nil; l.params.DenyAll {
		return nil
	}
	r.Estimate, r.AtMost = min(r.Estimate, capacity), min(r.AtMost, capacity)
	starts, ends := r.forms(form{*l.params, *placement})
	policy, err := placement.newPolicy(starts.params)
	endsPolicy, endsErr := placement.newPolicy(ends.params)
	*l.params = starts.params
	l.Policy, l.Reservation, l.Ends = policy, &r, endsPolicy
	return errors.Join(err, endsErr)
}
