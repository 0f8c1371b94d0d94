package rulefile

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// maxNumber is the maximum of requests_per_unit and similar fields, as in Envoy's 32-bit field.
const maxNumber = math.MaxUint32

type rateLimit struct {
	descriptors.RateLimit

	leased  bool  // consistency: leased
	badUnit error // error of the unit
}

func (r *reader) rateLimitSchema() *schema[rateLimit] {
	s := newSchema[rateLimit]("a rate limit")
	// field adds a field. It records the field's position, and whether the field has errors.
	field := func(name string, form shape, read func(n *yaml.Node, l *rateLimit)) {
		s.field(name, form, func(n *yaml.Node, l *rateLimit) {
			if isNull(resolve(n)) && name != "reservation" { // whose form an error shows
				return
			}
			l.Fields = append(l.Fields, descriptors.Field{Name: name, At: r.at(n)})
			before := r.Problems()
			read(n, l)
			l.Invalid = l.Invalid || r.Problems() > before
		})
	}
	field("name", textShape, func(n *yaml.Node, l *rateLimit) { l.Name = r.text(n) })
	field("replaces", listShape(ref("replaces"), 0), func(n *yaml.Node, l *rateLimit) { l.Replaces = r.readReplaces(n) })
	field("unlimited", booleanShape, func(n *yaml.Node, l *rateLimit) { l.Unlimited = r.boolean(n) })
	field("algorithm", algorithmShape, func(n *yaml.Node, l *rateLimit) {
		l.Params.Algorithm = readName(r, n, parseAlgorithm)
	})
	field("requests_per_unit", integerShape(0, maxNumber), func(n *yaml.Node, l *rateLimit) {
		l.Params.Limit = r.integer(n, 0, maxNumber)
	})
	field("unit", unitShape, func(n *yaml.Node, l *rateLimit) {
		r.scalar(n, "a text", func(n *yaml.Node) { l.Unit, l.badUnit = parseUnit(n.Value) })
	})
	field("unit_multiplier", hitsShape, func(n *yaml.Node, l *rateLimit) { l.UnitMultiplier = r.integer(n, 1, maxNumber) })
	field("window", durationShape, func(n *yaml.Node, l *rateLimit) { l.Params.Window = readName(r, n, parseDuration) })
	for _, p := range limiter.Algorithm(0).Parameters() {
		field(p.Name, parameterShape(&p), func(n *yaml.Node, l *rateLimit) { r.parameter(n, &p, &l.Params) })
	}
	policies := []descriptors.OnStoreFailure{descriptors.Local, descriptors.Allow, descriptors.Deny, descriptors.Fail}
	field("on_store_failure", nameShape(step.Names(policies)...), func(n *yaml.Node, l *rateLimit) {
		onFailure := readName(r, n, descriptors.ParseOnStoreFailure)
		l.OnStoreFailure = &onFailure
	})
	field("consistency", nameShape("strict", "leased"), func(n *yaml.Node, l *rateLimit) {
		l.leased = readName(r, n, oneOf("strict", "leased")) == 1
	})
	field("lease_for", durationShape, func(n *yaml.Node, l *rateLimit) { l.Placement.LeaseFor = r.duration(n) })
	field("engine", nameShape("weir", "redis_cell"), func(n *yaml.Node, l *rateLimit) {
		l.Placement.RedisCell = readName(r, n, oneOf("weir", "redis_cell")) == 1
	})
	field("reservation", ref("reservation"), func(n *yaml.Node, l *rateLimit) { l.Reservation = r.readReservation(n) })
	field("store", storeShape, func(n *yaml.Node, l *rateLimit) { l.Placement.Store = readName(r, n, parseStore) })
	field("scope", nameShape("regions"), func(n *yaml.Node, l *rateLimit) {
		l.Placement.Regions = readName(r, n, oneOf("", "regions")) == 1
	})
	forPeople(r, s)
	s.synonyms = rateLimitSynonyms
	s.meant = func(name string, l *rateLimit) { l.Misspelled = append(l.Misspelled, name) }
	return s
}

// reservationSchema has the fields of `reservation`.
func (r *reader) reservationSchema() *schema[descriptors.Reservation] {
	type Reservation = descriptors.Reservation
	s := newSchema[Reservation]("a reservation")
	s.must, s.about = "estimate", "the hits that a request is charged at its start"
	s.field("estimate", hitsShape, func(n *yaml.Node, into *Reservation) { into.Estimate = r.integer(n, 1, maxNumber) })
	s.field("at_most", hitsShape, func(n *yaml.Node, into *Reservation) { into.AtMost = r.integer(n, 1, maxNumber) })
	s.field("ends", nameShape("token", "cost"), func(n *yaml.Node, into *Reservation) {
		into.EndsByCost = readName(r, n, oneOf("token", "cost")) == 1
	})
	return s
}

// readReservation reads `reservation`. If n is not a mapping, it reports an error and returns nil.
func (r *reader) readReservation(n *yaml.Node) *descriptors.Reservation {
	if of := resolve(n); of.Kind != yaml.MappingNode {
		r.Errorf(r.at(n), "reservation must be fields with values, got %s; write reservation: {estimate: 1000} with the "+
			"hits that a request is charged at its start", kind(of))
		return nil
	}
	reservation := &descriptors.Reservation{At: r.at(n)}
	readFields(r, n, r.reservationFields, reservation)
	return reservation
}

func (r *reader) parameter(n *yaml.Node, p *step.Parameter[limiter.Params], in *limiter.Params) {
	switch {
	case p.IsZone():
		in.TimeZone = readName(r, n, r.timeZone)
	case p.Names != nil:
		p.Set(in, readName(r, n, oneOf(p.Names...)))
	case p.Scale != 0:
		p.Set(in, readName(r, n, func(text string) (int64, error) { return parseDecimal(p, text) }))
	case p.IsTime():
		p.Set(in, int64(r.duration(n)))
	default:
		p.Set(in, r.integer(n, 1, min(p.Most, maxNumber)))
	}
}

func (r *reader) duration(n *yaml.Node) time.Duration {
	before := r.Problems()
	d := readName(r, n, parseDuration)
	if d == 0 && r.Problems() == before {
		r.Errorf(r.at(n), "%s must be more than 0; leave it out for its default", r.field)
	}
	return d
}

// readRateLimits reads a list of limits. The result is not nil.
func (r *reader) readRateLimits(n *yaml.Node) []*descriptors.RateLimit {
	all := []*descriptors.RateLimit{}
	before := r.Problems()
	if resolve(n).Kind == yaml.MappingNode {
		r.Errorf(r.at(n),
			"rate_limits must be a list (lines that start with -), got fields; write rate_limit for one limit, "+
				"or a - before it")
		return all
	}
	r.list(n, "rate_limits", func(item *yaml.Node) {
		if l := r.readRateLimit(item); l != nil {
			all = append(all, l)
		}
	})
	if len(all) == 0 && r.Problems() == before {
		r.Errorf(r.at(n), "rate_limits is empty; write at least one limit, or leave it out")
	}
	return all
}

// readRateLimit reads one limit. If n is not a mapping, it reports an error and returns nil.
func (r *reader) readRateLimit(n *yaml.Node) *descriptors.RateLimit {
	l := &rateLimit{RateLimit: descriptors.RateLimit{At: r.at(n)}}
	isMapping := false
	r.enter(n, func(n *yaml.Node) {
		switch {
		case isNull(n):
			r.Errorf(r.at(n), "this limit is empty; write requests_per_unit and unit, or unlimited: true")
		case n.Kind == yaml.SequenceNode:
			r.Errorf(r.at(n),
				"a rate limit must be fields with values (name: value), got a list; write rate_limits for several limits")
		default:
			l.Fields = slices.Grow(l.Fields, len(n.Content)/2)
			isMapping = readFields(r, n, r.rateLimitFields, l)
		}
	})
	if !isMapping {
		return nil
	}
	r.finish(l)
	return &l.RateLimit
}

// finish checks and sets what depends on several fields.
func (r *reader) finish(l *rateLimit) {
	at := func(name string) descriptors.Position {
		i := slices.IndexFunc(l.Fields, func(f descriptors.Field) bool { return f.Name == name })
		return l.Fields[i].At
	}
	switch {
	case l.badUnit != nil && l.Unlimited: // unit has no meaning then
		r.Tolerate(at("unit"), "nothing is limited", "unit: %s", l.badUnit)
		return
	case l.Unlimited:
		return
	case l.badUnit != nil:
		l.Invalid = true
		r.Errorf(at("unit"), "unit: %s", l.badUnit)
	}
	leasesFor := slices.ContainsFunc(l.Fields, func(f descriptors.Field) bool { return f.Name == "lease_for" })
	switch {
	case l.leased && !leasesFor:
		l.Placement.LeaseFor = descriptors.DefaultLeaseFor
	case !l.leased && leasesFor:
		l.Invalid = true
		r.Errorf(at("lease_for"), "lease_for needs consistency: leased; write both, or remove lease_for")
	}
}

func (r *reader) readReplaces(n *yaml.Node) (all []descriptors.Text) {
	r.list(n, "replaces", func(item *yaml.Node) {
		limit := descriptors.Text{At: r.at(item)}
		if readFields(r, item, r.replacesFields, &limit) && limit.Text != "" {
			all = append(all, limit)
		}
	})
	return all
}

func readName[T any](r *reader, n *yaml.Node, parse func(string) (T, error)) (v T) {
	r.scalar(n, "a text", func(n *yaml.Node) {
		var err error
		if v, err = parse(n.Value); err != nil {
			r.Errorf(r.at(n), "%s: %s", r.field, err)
		}
	})
	return v
}

func parseStore(name string) (string, error) {
	for _, c := range name {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return "", fmt.Errorf("%q must be a name of a-z, 0-9 and _, as in --named-store", name)
		}
	}
	if name == "" {
		return "", errors.New("the name is empty; write a name from --named-store, or remove store")
	}
	return name, nil
}

func parseAlgorithm(name string) (limiter.Algorithm, error) {
	a, err := limiter.ParseAlgorithm(name)
	if err == nil {
		return a, nil // didYouMean would take more time than the rest of the limit
	}
	name = cmp.Or(algorithmSynonyms[strings.ToLower(name)], name)
	return a, fmt.Errorf("%w%s", err, didYouMean(name, step.Names(limiter.Algorithms())))
}

// oneOf returns a parser for these names, which returns a name's index. An empty name is a default without a name.
func oneOf(names ...string) func(name string) (int64, error) {
	return func(name string) (int64, error) {
		if i := slices.Index(names, name); i >= 0 && name != "" {
			return int64(i), nil
		}
		return 0, fmt.Errorf("%q is not known: use %s", name, strings.TrimPrefix(strings.Join(names, " or "), " or "))
	}
}

// timeZone returns the time zone of that name. It caches the time zones of a file, which many rules may name.
func (r *reader) timeZone(name string) (*time.Location, error) {
	if zone := r.zones[name]; zone != nil {
		return zone, nil
	}
	zone, err := time.LoadLocation(name)
	if err != nil || name == "" || zone == time.Local { // Local depends on the machine
		return nil, fmt.Errorf("%q is not a known time zone: write its name in the IANA database, such as Europe/Berlin, "+
			"or UTC", name)
	}
	if r.zones == nil {
		r.zones = map[string]*time.Location{}
	}
	r.zones[name] = zone
	return zone, nil
}
