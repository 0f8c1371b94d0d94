package descriptors

import (
	"cmp"
	"math"
	"slices"
	"time"

	bounds "github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Default has fields for limits that lack them: an item of `defaults` in a rule file. It is for rules whose source can
// say only a rate and a unit, such as a control plane.
type Default struct {
	Domain    string     // domain of the limits; empty for every domain
	Unit      Unit       // unit of the limits' windows; UnitUnknown for every window
	RateLimit *RateLimit // the fields, none of which may be a rate
	At        Position
}

// AddDefault adds a default for the limits that are added later, except limits of Go programs. A limit gets the first
// default with its domain and unit. AddDefault is for readers of rules.
func (c *Builder) AddDefault(d *Default) {
	before := c.Problems()
	for _, f := range d.RateLimit.Fields {
		if !new(RateLimit).take(f.Name, d.RateLimit) {
			c.Errorf(f.At, "%s has no default, because each limit has its own; remove it", f.Name)
		}
	}
	if c.Problems() == before {
		c.checkFits(d)
	}
	if first := c.defaultFor(d.Domain, d.Unit); first != nil {
		c.Errorf(d.At, "this default never applies, because the one at %s is for the same limits; remove one of the two, "+
			"or move this one up", first.At)
	}
	if c.Problems() == before {
		c.defaults = append(c.defaults, d)
	}
}

// checkFits reports a default that fits no limit of its unit. It reports the errors of the last limit that it tries,
// which has room for the reservation.
func (c *Builder) checkFits(d *Default) {
	own := RateLimit{Unit: cmp.Or(d.Unit, Hour), At: d.At, Fields: []Field{{"requests_per_unit", d.At}}}
	if d.Unit != UnitUnknown || !d.RateLimit.Params.Algorithm.CountsInFlight() {
		own.Fields = append(own.Fields, Field{"unit", d.At})
	}
	room, segments := max(1, d.RateLimit.Params.SegmentCap), max(1, d.RateLimit.Params.Segments)
	if r := d.RateLimit.Reservation; r != nil {
		room = max(room, r.Estimate, r.AtMost)
	}
	trial := *c
	trial.inQuota, trial.reserved = false, nil
	seconds := int64(own.Unit.Duration() / time.Second)
	for _, own.Params.Limit = range []int64{1, 1000, 1_000_000, seconds, math.MaxUint32, room} {
		for _, own.UnitMultiplier = range []int64{60, 3600, segments, 1} { // 60 minutes are an hour of the calendar
			trial.found, trial.warnings = findings{}, findings{}
			if trial.checkOwn(trial.merged(&own, d.RateLimit)); trial.found.total == 0 {
				return
			}
		}
	}
	for _, e := range trial.found.listed {
		c.Errorf(e.Position, "this default fits no limit: %s", e.Msg)
	}
}

// checkLimit checks one limit and sets its policy, with the fields of its default. A default that does not fit the
// limit does not apply. Otherwise one small limit would make Weir refuse all rules of a control plane.
func (c *Builder) checkLimit(from *RateLimit) checked {
	d := c.defaultOf(from)
	if d == nil {
		return c.checkOwn(from)
	}
	both := c.merged(from, d.RateLimit)
	if len(both.Fields) == len(from.Fields) {
		return c.checkOwn(from)
	}
	trial := *c
	trial.found, trial.warnings = findings{}, findings{}
	l := trial.checkOwn(both)
	if trial.found.total > 0 {
		own := c.checkOwn(from)
		if own.policy != nil {
			c.Warnf(WarnDefault, from.At, "the default at %s does not fit this limit and does not apply to it: %s", d.At,
				trial.found.listed[0].Msg)
		}
		return own
	}
	for _, w := range trial.warnings.listed {
		c.Warnf(w.Code, from.At, "%s", w.Msg)
	}
	l.byDefault = d.At.line()
	return l
}

// defaultOf returns the default that is for the limit, or nil.
func (c *Builder) defaultOf(l *RateLimit) *Default {
	if l.Unlimited || l.At.File == "" {
		return nil
	}
	unit := l.Unit
	if unit == UnitUnknown {
		unit, _ = UnitOf(l.Params.Window)
	}
	return c.defaultFor(c.inDomain, unit)
}

// defaultFor returns the first default that is for limits of the domain with the unit, or nil.
func (c *Builder) defaultFor(domain string, unit Unit) *Default {
	for _, d := range c.defaults {
		if (d.Domain == "" || d.Domain == domain) && (d.Unit == UnitUnknown || d.Unit == unit) {
			return d
		}
	}
	return nil
}

// goesWith has the fields that only another field gives a meaning.
var goesWith = map[string]string{"lease_for": "consistency", "time_zone": "align"}

// merged returns the limit own with the fields of def that it lacks. If own names another algorithm, it gets no field
// of an algorithm.
func (c *Builder) merged(own, def *RateLimit) *RateLimit {
	both := *own
	both.Fields = slices.Clone(own.Fields)
	has := func(name string) bool {
		return slices.ContainsFunc(own.Fields, func(f Field) bool { return f.Name == name })
	}
	isOther := has("algorithm") && own.Params.Algorithm != cmp.Or(def.Params.Algorithm, limiter.FixedWindow)
	for _, f := range def.Fields {
		ofAlgorithm := f.Name == "consistency" || f.Name == "lease_for" ||
			f.Name != "charge_denied" && slices.Contains(parameters[0], f.Name)
		switch {
		case has(f.Name), has(goesWith[f.Name]), isOther && ofAlgorithm:
		case f.Name == "reservation" && c.unfitEnds(def.Reservation) != "":
			c.Warnf(WarnDefault, own.At, "this limit gets no reservation from the default at %s: %s", f.At,
				c.unfitEnds(def.Reservation))
		default:
			both.Fields = append(both.Fields, f)
			both.take(f.Name, def)
		}
	}
	return &both
}

// take sets the field to its value in def. It returns false if each limit must give the field itself.
func (l *RateLimit) take(field string, def *RateLimit) bool {
	switch field {
	case "algorithm":
		l.Params.Algorithm = def.Params.Algorithm
	case "time_zone":
		l.Params.TimeZone = def.Params.TimeZone
	case "consistency", "lease_for":
		l.Placement.LeaseFor = def.Placement.LeaseFor
	case "engine":
		l.Placement.RedisCell = def.Placement.RedisCell
	case "store":
		l.Placement.Store = def.Placement.Store
	case "on_store_failure":
		l.OnStoreFailure = def.OnStoreFailure
	case "reservation":
		l.Reservation = def.Reservation
	default:
		i := slices.IndexFunc(allParameters, func(p bounds.Parameter[limiter.Params]) bool { return p.Name == field })
		if i < 0 {
			return false
		}
		allParameters[i].Set(&l.Params, allParameters[i].Get(&def.Params))
	}
	return true
}

var allParameters = limiter.Algorithm(0).Parameters()
