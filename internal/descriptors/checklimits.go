package descriptors

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/limit"
	bounds "github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// checked is a checked rate limit.
type checked struct {
	*RateLimit

	form
	at         Position // position of the limit
	fields     []Field
	unit       Unit
	multiplier int64
	policy     *sharedPolicy // nil if the limit is unlimited or invalid
	wrong      bool          // a field has an error, which is reported
	reserved   *Reservation  // reservation with its defaults; nil without one
	ends       *sharedPolicy // Limit.Ends; nil without a reservation
	byDefault  string        // position of the default that applies; empty without
}

// fieldAt returns the position of the field or, if it is not given, of the limit.
func (l *checked) fieldAt(name string) Position {
	for _, f := range l.fields {
		if f.Name == name {
			return f.At
		}
	}
	return l.at
}

func (l *checked) has(field string) bool {
	return slices.ContainsFunc(l.fields, func(f Field) bool { return f.Name == field })
}

// lacks reports whether the field is neither given nor misspelled.
func (l *checked) lacks(field string) bool {
	return !l.has(field) && !slices.Contains(l.Misspelled, field)
}

// checkLimits checks each limit of the descriptor, and then all together. The result is valid until the next call.
func (c *Builder) checkLimits(d *Descriptor) []checked {
	c.checked, c.reserved = c.checked[:0], nil
	for _, l := range d.RateLimits {
		c.reserved = cmp.Or(c.reserved, l.Reservation)
	}
	if d.RateLimit != nil {
		c.checked = append(c.checked, c.checkLimit(d.RateLimit))
	} else {
		for _, l := range d.RateLimits {
			c.checked = append(c.checked, c.checkLimit(l))
			c.reserved = cmp.Or(c.reserved, c.checked[len(c.checked)-1].reserved)
		}
		c.checkTogether(c.checked)
	}
	c.checkEnds()
	return c.checked
}

// checkOwn checks one limit without a default, and sets its policy.
func (c *Builder) checkOwn(from *RateLimit) checked {
	l := checked{
		RateLimit: from, form: form{from.Params, from.Placement}, at: c.at(from.At), fields: from.Fields, wrong: from.Invalid,
	}
	if from.At == (Position{}) {
		l.fields = from.given(l.at)
	}
	for _, p := range l.Replaces {
		if p.Text == l.Name {
			c.Errorf(p.At, "a limit cannot replace itself; name another limit than %s", p.Text)
		}
	}
	if err := c.process.checkStore(l.placement.Store); err != nil {
		c.Errorf(l.fieldAt("store"), "%s", err)
	}
	if l.Unlimited {
		c.checkUnlimited(&l)
		return l
	}
	if l.params.Algorithm == 0 && !l.has("algorithm") {
		l.params.Algorithm = limiter.FixedWindow
	}
	l.params.PeekAtLimit, l.params.DenyAll, l.params.Reserve = c.process.PeekAtLimit, l.params.Limit == 0, 0
	hasRate := c.checkRate(&l)
	if foreign := c.checkParameters(&l); foreign || !hasRate || l.wrong {
		return l
	}
	l.placement.Store = c.process.store(l.placement.Store, l.unit, l.multiplier)
	if l.placement.Regions {
		c.checkParts(&l)
	} else {
		c.checkPolicy(&l)
	}
	return l
}

// checkPolicy checks the parameters and the reservation, and sets the limit's policy.
func (c *Builder) checkPolicy(l *checked) {
	policy, err := c.policyOf(l.form)
	l.policy = policy
	c.reportParams(l, err)
	if l.policy != nil {
		c.warnWait(l)
		c.checkReservation(l)
	}
}

// reportParams reports the errors of a policy.
func (c *Builder) reportParams(l *checked, err error) {
	for _, e := range paramErrors(err) {
		if e.Param == "lease_for" && !l.has("lease_for") {
			c.Errorf(l.fieldAt("consistency"), "lease_for: %s; write consistency: strict", e.Msg)
			continue
		}
		c.Errorf(l.paramAt(e.Param), "%s: %s", fieldOf(e.Param), e.Msg)
	}
}

// checkUnlimited reports fields that contradict `unlimited: true`; for requests_per_unit it only warns.
func (c *Builder) checkUnlimited(l *checked) {
	const message = "unlimited: true and %s contradict each other; to limit, remove unlimited; to limit nothing, " +
		"remove %s"
	var others []string
	var at Position
	for _, f := range l.fields {
		if slices.Contains([]string{"unlimited", "name", "replaces"}, f.Name) {
			continue
		}
		if f.Name != "requests_per_unit" && at.File == "" {
			at = f.At
		}
		others = append(others, f.Name)
	}
	all := strings.Join(others, ", ")
	switch {
	case at.File != "":
		c.Tolerate(at, "nothing is limited", message, all, all)
	case len(others) > 0:
		c.Warnf(WarnUnlimited, l.fieldAt("requests_per_unit"), message, all, all)
	}
}

// checkRate checks that the limit has one number of requests and one window, and sets the policy's window.
func (c *Builder) checkRate(l *checked) bool {
	before := c.Problems()
	if l.lacks("requests_per_unit") {
		c.Tolerate(l.at, "it denies everything",
			"requests_per_unit is missing; write how many requests may pass, 0 to deny all of them, or unlimited: true")
	}
	l.unit, l.multiplier = l.Unit, l.UnitMultiplier
	switch unit, window := l.has("unit"), l.has("window"); {
	case l.params.Algorithm.CountsInFlight():
		c.checkLease(l)
	case unit && window:
		c.Errorf(l.fieldAt("window"), "unit and window are both given; remove one of the two")
	case window && l.has("unit_multiplier"):
		c.Errorf(l.fieldAt("unit_multiplier"),
			"unit_multiplier goes with unit, not with window; remove it and write the whole window")
	case !unit && !window && (!l.lacks("unit") || !l.lacks("window")): // misspelled, and reported
		return false
	case !unit && !window:
		c.Errorf(l.at,
			"unit is missing; write unit: second, minute, hour, day, week, month or year, or a window such as window: 90s")
	case window:
		if !l.wrong {
			u, m := UnitOf(l.params.Window)
			l.unit, l.multiplier = u, int64(m)
		}
	default:
		l.multiplier = max(l.multiplier, 1)
		if d := l.unit.Duration(); d > 0 && l.multiplier > int64(bounds.MaxWindow/d) {
			c.Errorf(l.fieldAt("unit_multiplier"),
				"unit_multiplier must be at most %d with unit: %s (10 years)", bounds.MaxWindow/d, l.unit)
			return false
		}
		l.params.Window = l.unit.Duration() * time.Duration(l.multiplier)
	}
	return c.Problems() == before && (l.has("requests_per_unit") || c.lenient(l.at))
}

// checkLease sets the policy's window to the lease, because requests in flight are not counted per window.
func (c *Builder) checkLease(l *checked) {
	for _, name := range []string{"unit", "unit_multiplier", "window"} {
		if l.has(name) {
			c.Errorf(l.fieldAt(name),
				"concurrency counts requests in flight, not per %s; remove it, and write lease: 60s, the time after "+
					"which a request that has not ended no longer counts", name)
		}
	}
	if !l.has("lease") {
		l.params.Window = DefaultLease
	}
}

// parameters has the fields that each algorithm takes besides its rate. The key 0 has the fields of all algorithms.
var parameters = func() map[limiter.Algorithm][]string {
	all := map[limiter.Algorithm][]string{}
	for _, a := range append(limiter.Algorithms(), 0) {
		names := bounds.Names(a.Parameters())
		if a == 0 || hasRedisCell(a) {
			names = slices.Insert(names, len(names)-1, "engine")
		}
		all[a] = names
	}
	return all
}()

// FieldsOf returns the fields that the algorithm takes in addition to its rate; for 0, those of all algorithms.
func FieldsOf(a limiter.Algorithm) []string { return parameters[a] }

// checkParameters reports parameters that the algorithm does not have.
func (c *Builder) checkParameters(l *checked) (foreign bool) {
	takes := parameters[l.params.Algorithm]
	for _, f := range l.fields {
		if slices.Contains(parameters[0], f.Name) && !slices.Contains(takes, f.Name) {
			c.Errorf(f.At, "%s is not a parameter of %s, which takes %s", f.Name, l.params.Algorithm, strings.Join(takes, ", "))
			foreign = true
		}
	}
	return foreign
}

// policyOf returns the policy of a form. Limits of the same form share one policy.
func (c *Builder) policyOf(f form) (*sharedPolicy, error) {
	if shared := c.policies[f]; shared != nil {
		return shared, nil
	}
	policy, err := f.placement.newPolicy(f.params)
	if err != nil {
		return nil, err
	}
	shared := &sharedPolicy{policy, f, f.placement.route()}
	c.policies[f] = shared
	return shared, nil
}

// fieldOf returns the field of a rule file that sets a parameter of limiter.Params.
func fieldOf(param string) string {
	if param == "limit" {
		return "requests_per_unit"
	}
	return param
}

// paramAt returns the position of the field that sets the parameter or, if it is not given, of the limit.
func (l *checked) paramAt(param string) Position {
	switch {
	case param == "window" && !l.has("window") && l.params.Algorithm.CountsInFlight():
		return l.fieldAt("lease")
	case param == "window" && !l.has("window"):
		return l.fieldAt("unit")
	default:
		return l.fieldAt(fieldOf(param))
	}
}

// paramErrors returns the errors that are joined in an error of newPolicy.
func paramErrors(err error) []*limiter.ParamError {
	if err == nil {
		return nil
	}
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		var all []*limiter.ParamError
		for _, e := range joined.Unwrap() {
			all = append(all, paramErrors(e)...)
		}
		return all
	}
	if one, ok := errors.AsType[*limiter.ParamError](err); ok {
		return []*limiter.ParamError{one}
	}
	return []*limiter.ParamError{{Param: "limit", Msg: err.Error()}}
}

// checkTogether checks the limits of one list against each other.
func (c *Builder) checkTogether(all []checked) {
	byName, byPolicy := map[string]Position{}, map[[2]any]*checked{}
	for i := range all {
		l := &all[i]
		if first, ok := byName[l.Name]; ok && l.Name != "" {
			c.Errorf(l.fieldAt("name"),
				"the name %s is already used at %s; name each limit of a descriptor differently", l.Name, first)
		}
		byName[l.Name] = l.fieldAt("name")
		if l.Unlimited {
			c.Errorf(l.fieldAt("unlimited"),
				"unlimited among other limits has no effect; remove it, or write rate_limit: {unlimited: true}")
		}
		if l.policy == nil {
			continue
		}
		same := [2]any{limit.Identity(l.policy.Policy), l.placement}
		const message = "this limit is the same as the one at %s; remove one of the two"
		switch first := byPolicy[same]; {
		case first == nil:
			byPolicy[same] = l
		case first.byDefault+l.byDefault != "":
			c.Warnf(WarnDefault, l.at, message, first.at)
		default:
			c.Errorf(l.at, message, first.at)
		}
	}
}
